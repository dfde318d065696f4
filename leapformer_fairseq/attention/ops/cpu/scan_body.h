/* The body of scan.c for one precision, REAL. Buffers are rows of vectors: their widths are padded with zeros. */

#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
#define VEC NAME(vec)

typedef MASK NAME(places) __attribute__((vector_size(VECTOR_BYTES)));
#define LOW_PLACES JOINED(PAIRS, HALF)(0, 2 * HALF)
#define HIGH_PLACES JOINED(PAIRS, HALF)(HALF, 2 * HALF)
#ifdef __clang__
#define RIFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define RIFFLE(a, b, ...) __builtin_shuffle(a, b, (NAME(places)){__VA_ARGS__})
#endif

/* The sum of a vector's numbers. */
static inline __attribute__((always_inline)) REAL NAME(total)(VEC x) {
    REAL numbers[2 * HALF];
    *(VEC *)numbers = x;
    for (int half = HALF; half; half /= 2)
        for (int i = 0; i < half; i++) numbers[i] += numbers[i + half];
    return numbers[0];
}

/* c (m, n) = or += a (m, depth) b (depth, n); n is a multiple of LANES. Element (i, k) of a is a[i * ai + k * ak]. */
static inline __attribute__((always_inline)) void NAME(tile)(const int rows, const int vectors, int64_t depth,
                                                             const REAL *a, int64_t ai, int64_t ak, const REAL *b,
                                                             int64_t ldb, REAL *c, int64_t ldc, int add) {
    VEC sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = add ? *(VEC *)(c + i * ldc + j * LANES) : (VEC){0};
    for (int64_t k = 0; k < depth; k++, a += ak, b += ldb) {
        VEC right[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) right[j] = *(const VEC *)(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const VEC left = a[i * ai] - (VEC){0};
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) *(VEC *)(c + i * ldc + j * LANES) = sums[i][j];
}

static inline __attribute__((always_inline)) void NAME(columns)(const int vectors, int64_t m, int64_t depth,
                                                                const REAL *a, int64_t ai, int64_t ak, const REAL *b,
                                                                int64_t ldb, REAL *c, int64_t ldc, int add) {
    for (; m >= TILE_ROWS; m -= TILE_ROWS, a += TILE_ROWS * ai, c += TILE_ROWS * ldc)
        NAME(tile)(TILE_ROWS, vectors, depth, a, ai, ak, b, ldb, c, ldc, add);
    for (; m >= 2; m -= 2, a += 2 * ai, c += 2 * ldc) NAME(tile)(2, vectors, depth, a, ai, ak, b, ldb, c, ldc, add);
    if (m) NAME(tile)(1, vectors, depth, a, ai, ak, b, ldb, c, ldc, add);
}

static void NAME(multiply)(int64_t m, int64_t n, int64_t depth, const REAL *a, int64_t ai, int64_t ak, const REAL *b,
                           int64_t ldb, REAL *c, int64_t ldc, int add) {
    for (; n >= TILE_VECTORS * LANES; n -= TILE_VECTORS * LANES, b += TILE_VECTORS * LANES, c += TILE_VECTORS * LANES)
        NAME(columns)(TILE_VECTORS, m, depth, a, ai, ak, b, ldb, c, ldc, add);
    for (; n > 0; n -= LANES, b += LANES, c += LANES) NAME(columns)(1, m, depth, a, ai, ak, b, ldb, c, ldc, add);
}

/* out (n, m) = x (m, n) transposed; both are multiples of LANES. */
static void NAME(transpose)(const REAL *x, int64_t m, int64_t n, int64_t ldx, REAL *out, int64_t ldo) {
    enum { lanes = VECTOR_BYTES / sizeof(REAL) };
    for (int64_t i0 = 0; i0 < m; i0 += lanes)
        for (int64_t j0 = 0; j0 < n; j0 += lanes) {
            VEC rows[lanes], mixed[lanes];
            for (int i = 0; i < lanes; i++) rows[i] = *(const VEC *)(x + (i0 + i) * ldx + j0);
            /* After log2(lanes) riffles, rows and columns have changed places. */
            for (int step = 1; step < lanes; step *= 2) {
                for (int i = 0; i < lanes / 2; i++) {
                    mixed[2 * i] = RIFFLE(rows[i], rows[i + lanes / 2], LOW_PLACES);
                    mixed[2 * i + 1] = RIFFLE(rows[i], rows[i + lanes / 2], HIGH_PLACES);
                }
                for (int i = 0; i < lanes; i++) rows[i] = mixed[i];
            }
            for (int j = 0; j < lanes; j++) *(VEC *)(out + (j0 + j) * ldo + i0) = rows[j];
        }
}

/* A proportion network of the head at hand, p = sigmoid(last . relu(weight^T x + bias) + last_bias), and its gradients.
 * Its layer has a row for each hidden unit, in which tokens are neighbours. */
typedef struct {
    int64_t hidden, room;                      /* hidden units; tokens of the block, padded to vectors */
    const REAL *weight, *bias, *last;          /* as they come, packed: (D, hidden), (hidden), (hidden), last_bias */
    REAL *columns;                             /* weight transposed, (hidden, dim) */
    REAL *x, *layer, *to_layer;                /* (dim, room), (hidden, room) */
    REAL *slopes, *to_angles, *to_x;           /* (room) of the angles, (room), (room, dim) */
    REAL *to_weight, *to_bias, *to_last;       /* (hidden, dim), (hidden, LANES) to be summed */
    VEC to_last_bias;
} NAME(Network);

/* What one thread works with: sizes, the head and the block at hand, and buffers. */
typedef struct {
    const Scan *s;
    int64_t batch, head;
    int64_t dim, values, features;  /* D, E and the features of a token, padded to vectors */
    int64_t nq, nk, written, width; /* of the block: queries, keys, keys that are written, keys padded to vectors */
    int64_t direction;              /* 1 or -1: blocks are visited forward or backward */
    int weighted;                   /* scores have a factor, of turns or decays */
    int64_t used;
    REAL *arena;
    REAL *q, *k, *v, *k_columns, *v_columns; /* mapped queries and keys (n, dim), values (n, values); transposed */
    REAL *reading, *writing;                 /* features (n, features) that read the state, or are written to it */
    REAL *total;                             /* (nk + 1) log-decays cumulated from the start of the block */
    REAL *q_cos, *q_sin, *k_cos, *k_sin;     /* factors of scores: of decays, and cosines and sines */
    REAL *read_cos, *read_sin, *write_cos, *write_sin; /* the same of features */
    REAL *scores, *to_scores;                          /* (STRIP, width) */
    REAL *sums, *norms;                                /* (nq, values), (nq) */
    REAL *to_sums, *to_norms, *to_q, *to_k, *to_v, *to_reading, *to_writing; /* gradients */
    REAL *along_cos, *along_sin;                       /* (nk) gradients of the factors of keys */
    REAL *later;                                       /* (nk) gradients of decays, see `decays_back` */
    REAL *state, *state_back, *state_rows;             /* see `backward` */
    REAL *left, *grown, *rest, *taking, *system, *lags, *to_taking, *to_system; /* of the delta rule, see `solve` */
    NAME(Network) query_network, key_network;
    REAL *raw_q, *raw_k;                               /* vectors before the activation, if they are needed */
} NAME(Work);

static int64_t NAME(padded)(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* The buffers; called once without an arena to measure it, and once with it. */
static void NAME(lay_out)(NAME(Work) *w, int backward) {
    const Scan *s = w->s;
    const int64_t gained = s->block / s->unit * s->gain, dim = w->dim, features = w->features, values = w->values;
    const int64_t rows = NAME(padded)(s->block > WRITTEN ? s->block : WRITTEN);
    const int64_t keys = NAME(padded)(gained > WRITTEN ? gained : WRITTEN), state = features * (values + 1);
    const int64_t raw = needs_raw(s) ? dim : 0, delta = s->strength ? 1 : 0, back = backward ? 1 : 0;
    NAME(Network) *q = &w->query_network, *k = &w->key_network;
    const int64_t hidden = q->hidden = k->hidden = s->hidden, inputs = hidden ? dim : 0;
    const struct {
        REAL **buffer;
        int64_t numbers;
    } rooms[] = {
        {&w->q, rows * dim}, {&w->k, keys * dim}, {&w->v, keys * values}, {&w->raw_q, rows * raw},
        {&w->raw_k, keys * raw}, {&w->k_columns, keys * dim}, {&w->v_columns, back * keys * values},
        {&w->q_cos, rows}, {&w->q_sin, rows}, {&w->read_cos, rows}, {&w->read_sin, rows}, {&w->reading, rows * features},
        {&w->k_cos, keys}, {&w->k_sin, keys}, {&w->write_cos, keys}, {&w->write_sin, keys},
        {&w->writing, keys * features}, {&w->total, keys + 1}, {&w->scores, STRIP * keys}, {&w->sums, rows * values},
        {&w->norms, rows}, {&w->state, state}, {&w->state_rows, state}, {&w->state_back, back * state},
        {&w->to_q, back * rows * dim}, {&w->to_k, back * keys * dim}, {&w->to_v, back * keys * values},
        {&w->to_scores, back * STRIP * keys}, {&w->to_sums, back * rows * values}, {&w->to_norms, rows},
        {&w->to_reading, back * rows * features}, {&w->to_writing, back * keys * features}, {&w->along_cos, keys},
        {&w->along_sin, keys}, {&w->later, keys}, {&w->left, keys}, {&w->grown, keys},
        {&w->rest, delta * keys * values}, {&w->taking, delta * keys * dim}, {&w->to_taking, delta * keys * dim},
        {&w->system, delta * keys * keys}, {&w->lags, delta * keys * keys}, {&w->to_system, delta * keys * keys},
        {&q->layer, rows * hidden}, {&q->to_layer, rows * hidden}, {&q->x, rows * inputs}, {&q->to_x, rows * inputs},
        {&q->columns, hidden * dim}, {&q->to_weight, hidden * dim}, {&q->to_bias, hidden * LANES},
        {&q->to_last, hidden * LANES}, {&q->slopes, rows}, {&q->to_angles, rows},
        {&k->layer, keys * hidden}, {&k->to_layer, keys * hidden}, {&k->x, keys * inputs}, {&k->to_x, keys * inputs},
        {&k->columns, hidden * dim}, {&k->to_weight, hidden * dim}, {&k->to_bias, hidden * LANES},
        {&k->to_last, hidden * LANES}, {&k->slopes, keys}, {&k->to_angles, keys},
    };
    w->used = 0;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        *rooms[i].buffer = w->arena ? w->arena + w->used : NULL;
        w->used += NAME(padded)(rooms[i].numbers);
    }
}

static int NAME(begin)(NAME(Work) *w, const Scan *s, int backward) {
    memset(w, 0, sizeof *w);
    w->s = s;
    w->dim = NAME(padded)(s->dim);
    w->values = NAME(padded)(s->values);
    w->features = s->turned ? 2 * w->dim : w->dim;
    w->weighted = s->turned || s->decay;
    w->direction = backward ? -1 : 1;
    NAME(lay_out)(w, backward);
    return posix_memalign((void **)&w->arena, 64, w->used * sizeof(REAL)) ? 1 : (NAME(lay_out)(w, backward), 0);
}

/* ------------------------------------------------------------------------------------------------ tokens and states */

static int64_t NAME(place)(const NAME(Work) *w, const int64_t *strides, int64_t token) {
    return w->batch * strides[0] + w->head * strides[1] + token * strides[2];
}

static inline VEC NAME(where)(NAME(places) mask, VEC x, VEC other) {
    return (VEC)(((NAME(places))x & mask) | ((NAME(places))other & ~mask));
}

/* Fetch what the next block will need: a head's rows are far apart in memory, and the processor does not foresee them. */
static inline void NAME(fetch)(const NAME(Work) *w, const REAL *row, int64_t stride, int64_t count, int64_t width) {
    const REAL *next = row + w->direction * stride * count;
    for (int64_t d = 0; d < width; d += 64 / (int64_t)sizeof(REAL)) __builtin_prefetch(next + d);
}

/* Whether a key is padding. */
static inline int NAME(is_padding)(const NAME(Work) *w, const uint8_t *keep, int64_t key) {
    return keep && !keep[w->batch * w->s->keys + key];
}

/* Vectors (count, width) of tokens from t0 on into rows of `padded` numbers; zeros where `keep` is 0. */
static void NAME(load)(const NAME(Work) *w, const REAL *x, const int64_t *strides, int64_t t0, int64_t count,
                       int64_t width, int64_t padded, const uint8_t *keep, REAL *out) {
    for (int64_t t = 0; t < count; t++, out += padded) {
        const REAL *row = x + NAME(place)(w, strides, t0 + t);
        int64_t d = 0;
        NAME(fetch)(w, row, strides[2], count, width);
        if (NAME(is_padding)(w, keep, t0 + t)) {
            memset(out, 0, padded * sizeof(REAL));
            continue;
        }
        for (; d + LANES <= width; d += LANES) *(VEC *)(out + d) = *(const VEC *)(row + d);
        for (; d < padded; d++) out[d] = d < width ? row[d] : 0;
    }
}

static void NAME(store)(const NAME(Work) *w, void *to_x, const int64_t *strides, int64_t t0, int64_t count,
                        int64_t width, int64_t padded, const uint8_t *keep, const REAL *gradients) {
    for (int64_t t = 0; t < count; t++, gradients += padded) {
        REAL *row = (REAL *)to_x + NAME(place)(w, strides, t0 + t);
        int64_t d = 0;
        NAME(fetch)(w, row, strides[2], count, width);
        if (NAME(is_padding)(w, keep, t0 + t)) {
            memset(row, 0, width * sizeof(REAL));
            continue;
        }
        for (; d + LANES <= width; d += LANES) *(VEC *)(row + d) = *(const VEC *)(gradients + d);
        for (; d < width; d++) row[d] = gradients[d];
    }
}

static REAL NAME(dot)(const REAL *a, const REAL *b, int64_t count) {
    VEC sums = {0};
    for (int64_t i = 0; i < count; i += LANES) sums += *(const VEC *)(a + i) * *(const VEC *)(b + i);
    return NAME(total)(sums);
}

static inline REAL NAME(sigmoid)(REAL x) { return 1 / (1 + JOINED(exp, REAL)(-x)); }

/* 1 / |x| of a vector that was scaled to length one, as in ../unit.py. */
static inline REAL NAME(inverse_length)(const REAL *x, int64_t dim) {
    return 1 / (REAL)sqrt(NAME(dot)(x, x, dim) + SHORTEST * SHORTEST);
}

/* Applies the activation to vectors (count, dim) of tokens from t0 on, in place; padding stays zeros. */
static void NAME(activate)(const NAME(Work) *w, REAL *x, int64_t t0, int64_t count, const uint8_t *keep, REAL scale) {
    const int64_t dim = w->dim, activation = w->s->activation;
    for (int64_t t = 0; t < count && activation; t++, x += dim) {
        if (activation == RELU)
            for (int64_t d = 0; d < dim; d += LANES) *(VEC *)(x + d) = NAME(where)(*(VEC *)(x + d) < 0, (VEC){0}, *(VEC *)(x + d));
        else if (activation == ELU && !NAME(is_padding)(w, keep, t0 + t))
            for (int64_t d = 0; d < w->s->dim; d++) {
                const REAL below = JOINED(exp, REAL)(x[d] > 0 ? 0 : x[d]);
                x[d] = x[d] > 0 ? x[d] + 1 : below;
            }
        else if (activation == DIRECTION) {
            for (int64_t d = 0; d < dim; d++) x[d] *= NAME(sigmoid)(x[d]);
            const REAL factor = scale * NAME(inverse_length)(x, dim);
            for (int64_t d = 0; d < dim; d += LANES) *(VEC *)(x + d) *= factor;
        }
    }
}

/* Turns gradients of `mapped` vectors into those of vectors before the activation, `raw` ones. */
static void NAME(activate_back)(const NAME(Work) *w, const REAL *mapped, const REAL *raw, int64_t count, REAL scale,
                                REAL *gradients) {
    const int64_t dim = w->dim, activation = w->s->activation;
    const VEC zero = {0}, one = zero + 1;
    for (int64_t t = 0; t < count && activation; t++, mapped += dim, gradients += dim) {
        if (activation == RELU)
            for (int64_t d = 0; d < dim; d += LANES)
                *(VEC *)(gradients + d) = NAME(where)(*(const VEC *)(mapped + d) <= 0, zero, *(VEC *)(gradients + d)); /* NaN stays */
        else if (activation == ELU) /* the derivative is min(1, output) */
            for (int64_t d = 0; d < dim; d += LANES)
                *(VEC *)(gradients + d) *= NAME(where)(*(const VEC *)(mapped + d) < 1, *(const VEC *)(mapped + d), one);
        else if (activation == DIRECTION) {
            const REAL *x = raw + t * dim;
            REAL silu[dim];
            for (int64_t d = 0; d < dim; d++) silu[d] = x[d] * NAME(sigmoid)(x[d]);
            const REAL inverse = NAME(inverse_length)(silu, dim), along = NAME(dot)(silu, gradients, dim) * inverse * inverse;
            for (int64_t d = 0; d < dim; d++) {
                const REAL share = NAME(sigmoid)(x[d]), to_silu = scale * inverse * (gradients[d] - along * silu[d]);
                gradients[d] = to_silu * (share + silu[d] * (1 - share));
            }
        }
    }
}

/* x (count, dim) times `cos` and, if turned, `sin` of its token: features (count, features). */
static void NAME(expand)(const NAME(Work) *w, const REAL *x, const REAL *cos, const REAL *sin, int64_t count,
                         REAL *out) {
    for (int64_t t = 0; t < count; t++, x += w->dim, out += w->features) {
        for (int64_t d = 0; d < w->dim; d++) out[d] = x[d] * cos[t];
        if (w->s->turned)
            for (int64_t d = 0; d < w->dim; d++) out[w->dim + d] = x[d] * sin[t];
    }
}

/* Adds to gradients of x those of its features, and to those of the angles: d/d angle of (cos, sin) is (-sin, cos). */
static void NAME(expand_back)(const NAME(Work) *w, const REAL *x, const REAL *cos, const REAL *sin, int64_t count,
                              const REAL *to_features, REAL *to_x, REAL *to_angles) {
    for (int64_t t = 0; t < count; t++, x += w->dim, to_x += w->dim, to_features += w->features) {
        if (!w->s->turned) {
            for (int64_t d = 0; d < w->dim; d++) to_x[d] += to_features[d] * cos[t];
            continue;
        }
        VEC turn = {0};
        for (int64_t d = 0; d < w->dim; d += LANES) {
            const VEC to_cos = *(const VEC *)(to_features + d), to_sin = *(const VEC *)(to_features + w->dim + d);
            *(VEC *)(to_x + d) += to_cos * cos[t] + to_sin * sin[t];
            turn += *(const VEC *)(x + d) * (to_sin * cos[t] - to_cos * sin[t]);
        }
        if (to_angles) to_angles[t] += NAME(total)(turn);
    }
}

/* A state as given, (F, E + normalizes), into (values, features) with the normalizer's row behind; or back. */
static void NAME(convert_state)(const NAME(Work) *w, REAL *given, REAL *state, int store) {
    const int64_t dim = w->s->dim, columns = w->s->values + w->s->normalizes, features = w->features;
    const int64_t turned = dim % LANES || w->s->values % LANES ? 0 : w->s->values; /* columns that are transposed at once */
    for (int64_t half = 0; half <= w->s->turned; half++, given += dim * columns, state += w->dim) {
        if (turned && store) NAME(transpose)(state, turned, dim, features, given, columns);
        else if (turned) NAME(transpose)(given, dim, turned, columns, state, features);
        for (int64_t e = turned; e < columns; e++) {
            REAL *row = state + (e < w->s->values ? e : w->values) * features;
            for (int64_t d = 0; d < dim; d++)
                if (store) given[d * columns + e] = row[d];
                else row[d] = given[d * columns + e];
        }
    }
}

/* Where the state of the head at hand is in a tensor of `count` states of each. */
static REAL *NAME(state_at)(const NAME(Work) *w, const void *states, int64_t count, int64_t number) {
    const Scan *s = w->s;
    const int64_t size = (1 + s->turned) * s->dim * (s->values + s->normalizes);
    return (REAL *)states + ((w->batch * s->heads + w->head) * count + number) * size;
}

/* ---------------------------------------------------------------------------------------------- proportion networks */

/* How many numbers a packed network has. */
static int64_t NAME(packed_size)(const Scan *s) { return (s->dim + 2) * s->hidden + 1; }

/* The network of the head at hand; its gradients become zeros. */
static void NAME(load_network)(const NAME(Work) *w, const void *packed, NAME(Network) *n) {
    const int64_t hidden = n->hidden, dim = w->dim;
    n->weight = (const REAL *)packed + (w->s->per_head ? w->head * NAME(packed_size)(w->s) : 0);
    n->bias = n->weight + w->s->dim * hidden, n->last = n->bias + hidden;
    memset(n->columns, 0, hidden * dim * sizeof(REAL));
    for (int64_t d = 0; d < w->s->dim; d++)
        for (int64_t h = 0; h < hidden; h++) n->columns[h * dim + d] = n->weight[d * hidden + h];
    memset(n->to_weight, 0, hidden * dim * sizeof(REAL));
    memset(n->to_bias, 0, hidden * LANES * sizeof(REAL));
    memset(n->to_last, 0, hidden * LANES * sizeof(REAL));
    n->to_last_bias = (VEC){0};
}

static void NAME(load_networks)(NAME(Work) *w) {
    if (!w->s->query_network) return;
    NAME(load_network)(w, w->s->query_network, &w->query_network);
    NAME(load_network)(w, w->s->key_network, &w->key_network);
}

static void NAME(store_network)(const NAME(Work) *w, const NAME(Network) *n, void *packed) {
    const int64_t head = w->batch * w->s->heads + w->head;
    REAL *next = (REAL *)packed + head * NAME(packed_size)(w->s);
    for (int64_t d = 0; d < w->s->dim; d++)
        for (int64_t h = 0; h < n->hidden; h++) *next++ = n->to_weight[h * w->dim + d];
    for (int64_t h = 0; h < n->hidden; h++) *next++ = NAME(total)(*(VEC *)(n->to_bias + h * LANES));
    for (int64_t h = 0; h < n->hidden; h++) *next++ = NAME(total)(*(VEC *)(n->to_last + h * LANES));
    *next = NAME(total)(n->to_last_bias);
}

/* Cosines and sines of the angles pi / 2 * p of tokens x (count, dim). */
static void NAME(proportions)(const NAME(Work) *w, NAME(Network) *n, REAL *x, int64_t count, REAL *cos, REAL *sin) {
    const int64_t dim = w->dim, hidden = n->hidden, room = n->room = NAME(padded)(count);
    memset(x + count * dim, 0, (room - count) * dim * sizeof(REAL));
    NAME(transpose)(x, room, dim, dim, n->x, room);
    NAME(multiply)(hidden, room, w->s->dim, n->weight, 1, hidden, n->x, room, n->layer, room, 0);
    for (int64_t t = 0; t < room; t += LANES) {
        VEC sum = n->last[hidden] - (VEC){0};
        for (int64_t h = 0; h < hidden; h++) {
            VEC *unit = (VEC *)(n->layer + h * room + t);
            *unit += n->bias[h];
            *unit = NAME(where)(*unit < 0, (VEC){0}, *unit);
            sum += n->last[h] * *unit;
        }
        *(VEC *)(n->slopes + t) = sum;
    }
    for (int64_t t = 0; t < room; t++) {
        /* Of p and 1 - p the smaller one is computed first, with an exponent that cannot overflow. */
        const REAL y = n->slopes[t], e = JOINED(exp, REAL)(y < 0 ? y : -y), most = 1 / (1 + e), least = e / (1 + e);
        const REAL p = y < 0 ? least : most, rest = y < 0 ? most : least;
        sin[t] = JOINED(turn, REAL)(p);
        cos[t] = JOINED(turn, REAL)(rest);
        n->slopes[t] = (REAL)1.5707963267948966 * p * rest;
    }
}

/* Adds the gradients of the network's parameters, and returns those of its input x, given those of the angles. */
static const REAL *NAME(proportions_back)(const NAME(Work) *w, NAME(Network) *n, const REAL *x, int64_t count) {
    const int64_t dim = w->dim, hidden = n->hidden, room = n->room;
    for (int64_t t = 0; t < room; t += LANES) {
        const VEC to_sum = *(VEC *)(n->to_angles + t) * *(VEC *)(n->slopes + t);
        n->to_last_bias += to_sum;
        for (int64_t h = 0; h < hidden; h++) {
            const VEC unit = *(VEC *)(n->layer + h * room + t);
            const VEC to_unit = NAME(where)(unit <= 0, (VEC){0}, n->last[h] * to_sum);
            *(VEC *)(n->to_layer + h * room + t) = to_unit;
            *(VEC *)(n->to_bias + h * LANES) += to_unit;
            *(VEC *)(n->to_last + h * LANES) += unit * to_sum;
        }
    }
    NAME(multiply)(hidden, dim, count, n->to_layer, room, 1, x, dim, n->to_weight, dim, 1);
    NAME(multiply)(count, dim, hidden, n->to_layer, 1, room, n->columns, dim, n->to_x, dim, 0);
    return n->to_x;
}

/* Turns gradients of mapped tokens into those of the tokens, with what reaches these through their network. */
static void NAME(tokens_back)(const NAME(Work) *w, NAME(Network) *n, const REAL *mapped, const REAL *raw, int64_t count,
                              REAL scale, REAL *gradients) {
    const int64_t numbers = w->s->query_network ? count * w->dim : 0;
    const REAL *to_x = numbers ? NAME(proportions_back)(w, n, w->s->raw ? raw : mapped, count) : NULL;
    if (!w->s->raw)
        for (int64_t i = 0; i < numbers; i++) gradients[i] += to_x[i];
    NAME(activate_back)(w, mapped, raw, count, scale, gradients);
    if (w->s->raw)
        for (int64_t i = 0; i < numbers; i++) gradients[i] += to_x[i];
}

/* ------------------------------------------------------------------------------------------------------------ blocks */

/* Where the numbers of keys from this one on are in a tensor (B, H, S), if there is one. */
static const REAL *NAME(of_keys)(const NAME(Work) *w, const void *numbers, int64_t key) {
    return numbers ? (const REAL *)numbers + (w->batch * w->s->heads + w->head) * w->s->keys + key : NULL;
}

/* The blocks of the head at hand, and how many there are. A block ends early where decays would make a factor of keys
 * larger than e^LITTLE. */
static int64_t NAME(cut)(const NAME(Work) *w, Block *blocks) {
    const Scan *s = w->s;
    int64_t count = 0, t = 0, key = 0;
    for (; key < s->shared; key = least(key + WRITTEN, s->shared))
        blocks[count++] = (Block){0, 0, key, least(key + WRITTEN, s->shared)};
    while (t < s->growing) {
        const int64_t unit = least(t + s->unit, s->growing);
        if (s->gain > WRITTEN && !s->ahead) { /* so many keys are written before they are read */
            for (const int64_t stop = least(key + s->gain, s->keys); key < stop; key = least(key + WRITTEN, stop))
                blocks[count++] = (Block){t, t, key, least(key + WRITTEN, stop)};
            for (; t < unit; t = least(t + WRITTEN, unit))
                blocks[count++] = (Block){t, least(t + WRITTEN, unit), key, key};
            continue;
        }
        Block block = {t, unit, key, least(key + s->gain, s->keys)};
        const REAL *decays = NAME(of_keys)(w, s->decay, 0);
        REAL decayed = 0;
        while (block.t1 < s->growing && block.t1 - t < s->block) {
            const int64_t next = least(block.s1 + s->gain, s->keys);
            for (int64_t j = block.s1; decays && j < next; j++) decayed += decays[j];
            if (decayed < -LITTLE) break;
            block.t1 = least(block.t1 + s->unit, s->growing);
            block.s1 = next;
        }
        blocks[count++] = block;
        t = block.t1, key = block.s1;
    }
    for (; t < s->queries; t = least(t + WRITTEN, s->queries))
        blocks[count++] = (Block){t, least(t + WRITTEN, s->queries), key, key};
    return count;
}

/* Cosines and sines of tokens, times a factor: (2, count). */
static void NAME(turns)(const NAME(Work) *w, const void *turns, const int64_t *strides, int64_t t0, int64_t count,
                        REAL *cos, REAL *sin) {
    for (int64_t t = 0; t < count; t++) {
        const REAL *turn = turns ? (const REAL *)turns + NAME(place)(w, strides, t0 + t) : NULL;
        cos[t] = turn ? turn[0] : 1;
        sin[t] = turn ? turn[1] : 0;
    }
}

/* The delta rule: with b the strengths and c the cumulated decays, keys write, instead of their values v,
 *
 *     u_i = b_i (v_i - e^c_i k_i S - sum_{j < i} A_ij u_j),    A_ij = (k_i . k_j) e^(c_i - c_j).
 *
 * S, the state before the block, is known, so that this is a triangular system, solved from the first key on, STRIP
 * keys at a time. `rest` is the sum in brackets, `taking` is -e^c k, and `system` is -A with the factors `lags`. */
static void NAME(solve)(NAME(Work) *w, const Block *b, const REAL *state) {
    const int64_t dim = w->dim, values = w->values, width = w->width, nk = w->nk;
    const REAL *strength = NAME(of_keys)(w, w->s->strength, b->s0);
    const int mild = !w->s->decay || w->total[nk] > -LITTLE; /* then lags are products, and few exponentials */
    for (int64_t j = 0; j < nk; j++) {
        w->left[j] = w->s->decay ? JOINED(exp, REAL)(w->total[j + 1]) : 1;
        w->grown[j] = mild ? 1 / w->left[j] : 0;
    }
    for (int64_t i = 0; i < nk; i++) {
        REAL *lags = w->lags + i * width;
        for (int64_t d = 0; d < dim; d += LANES) *(VEC *)(w->taking + i * dim + d) = -w->left[i] * *(VEC *)(w->k + i * dim + d);
        if (mild)
            for (int64_t j = 0; j < i; j += LANES) *(VEC *)(lags + j) = -w->left[i] * *(VEC *)(w->grown + j);
        else
            for (int64_t j = 0; j < i; j++) lags[j] = -JOINED(exp, REAL)(w->total[i + 1] - w->total[j + 1]);
        for (int64_t j = i; j < width; j++) lags[j] = 0;
    }
    memcpy(w->rest, w->v, nk * values * sizeof(REAL));
    NAME(transpose)(state, values, dim, dim, w->state_rows, values);
    NAME(multiply)(nk, values, dim, w->taking, dim, 1, w->state_rows, values, w->rest, values, 1);
    for (int64_t from = 0; from < nk; from += STRIP) {
        const int64_t to = least(from + STRIP, nk);
        REAL *system = w->system + from * width;
        NAME(multiply)(to - from, NAME(padded)(to), w->s->dim, w->k + from * dim, dim, 1, w->k_columns, width, system,
                       width, 0);
        for (int64_t i = from; i < to; i++)
            for (int64_t j = 0; j < NAME(padded)(to); j += LANES)
                *(VEC *)(w->system + i * width + j) *= *(VEC *)(w->lags + i * width + j);
        NAME(multiply)(to - from, values, from, system, width, 1, w->v, values, w->rest + from * values, values, 1);
        for (int64_t i = from; i < to; i++) {
            for (int64_t e = 0; e < values; e += LANES) {
                VEC *rest = (VEC *)(w->rest + i * values + e), sum = *rest;
                for (int64_t j = from; j < i; j++) sum += w->system[i * width + j] * *(VEC *)(w->v + j * values + e);
                *(VEC *)(w->v + i * values + e) = strength[i] * (*rest = sum);
            }
        }
    }
}

/* The gradients through `solve`, given those of what keys write, in `to_v`, which become those of values. Those of keys
 * as they are read are added to `to_k`, those of keys as they read are set in `to_taking`. */
static void NAME(solve_back)(NAME(Work) *w, const Block *b, const REAL *state) {
    const int64_t dim = w->dim, values = w->values, width = w->width, nk = w->nk;
    const REAL *strength = NAME(of_keys)(w, w->s->strength, b->s0);
    REAL *to_strength = (REAL *)NAME(of_keys)(w, w->s->to_strength, b->s0);
    for (int64_t to = nk; to > 0;) { /* from the last key to the first, STRIP at a time */
        const int64_t from = (to - 1) / STRIP * STRIP;
        NAME(multiply)(to - from, values, nk - to, w->system + to * width + from, 1, width, w->to_v + to * values, values,
                       w->to_v + from * values, values, 1);
        for (int64_t i = to - 1; i >= from; i--) {
            VEC product = {0};
            for (int64_t e = 0; e < values; e += LANES) {
                VEC *to_v = (VEC *)(w->to_v + i * values + e), sum = *to_v;
                for (int64_t j = i + 1; j < to; j++) sum += w->system[j * width + i] * *(VEC *)(w->to_v + j * values + e);
                product += sum * *(VEC *)(w->rest + i * values + e);
                *to_v = sum * strength[i];
            }
            to_strength[i] = NAME(total)(product);
        }
        to = from;
    }
    NAME(multiply)(nk, width, w->s->values, w->to_v, values, 1, w->v_columns, width, w->to_system, width, 0);
    for (int64_t i = 0; i < nk; i++)
        for (int64_t j = 0; j < width; j += LANES)
            *(VEC *)(w->to_system + i * width + j) *= *(VEC *)(w->lags + i * width + j);
    NAME(multiply)(nk, dim, w->s->values, w->to_v, values, 1, state, dim, w->to_taking, dim, 0);
    for (int64_t i = 0; i < nk; i++) {
        for (int64_t d = 0; d < dim; d += LANES) *(VEC *)(w->to_taking + i * dim + d) *= -w->left[i];
    }
    NAME(multiply)(nk, dim, nk, w->to_system, width, 1, w->k, dim, w->to_taking, dim, 1);
    NAME(multiply)(nk, dim, nk, w->to_system, 1, width, w->k, dim, w->to_k, dim, 1);
}

/* Loads the block's tokens and maps them. `state`: before the block, for the delta rule. */
static void NAME(load_block)(NAME(Work) *w, const Block *b, const REAL *state, int backward) {
    const Scan *s = w->s;
    const REAL *decays = NAME(of_keys)(w, s->decay, b->s0);
    w->nq = b->t1 - b->t0, w->nk = b->s1 - b->s0, w->width = NAME(padded)(w->nk);
    w->written = least(w->nk, s->ahead ? s->gain - s->ahead : w->nk);
    NAME(load)(w, s->q, s->q_strides, b->t0, w->nq, s->dim, w->dim, NULL, w->q);
    NAME(load)(w, s->k, s->k_strides, b->s0, w->nk, s->dim, w->dim, s->keep, w->k);
    NAME(load)(w, s->v, s->v_strides, b->s0, w->nk, s->values, w->values, s->keep, w->v);
    if (needs_raw(s)) {
        memcpy(w->raw_q, w->q, w->nq * w->dim * sizeof(REAL));
        memcpy(w->raw_k, w->k, w->nk * w->dim * sizeof(REAL));
    }
    NAME(activate)(w, w->q, b->t0, w->nq, NULL, s->query_scale);
    NAME(activate)(w, w->k, b->s0, w->nk, s->keep, 1);
    if (s->query_network) {
        NAME(proportions)(w, &w->query_network, s->raw ? w->raw_q : w->q, w->nq, w->q_cos, w->q_sin);
        NAME(proportions)(w, &w->key_network, s->raw ? w->raw_k : w->k, w->nk, w->k_cos, w->k_sin);
    } else {
        NAME(turns)(w, s->query_turns, s->query_turns_strides, b->t0, w->nq, w->q_cos, w->q_sin);
        NAME(turns)(w, s->key_turns, s->key_turns_strides, b->s0, w->nk, w->k_cos, w->k_sin);
    }
    for (int64_t i = 0; i < w->nq; i++) w->read_cos[i] = w->q_cos[i], w->read_sin[i] = w->q_sin[i];
    for (int64_t j = 0; j < w->nk; j++) w->write_cos[j] = w->k_cos[j], w->write_sin[j] = w->k_sin[j];
    if (decays) {
        w->total[0] = 0;
        for (int64_t j = 0; j < w->nk; j++) w->total[j + 1] = w->total[j] + decays[j];
        /* Factors of scores are measured from what the first query sees, so those of queries never exceed 1. */
        const REAL origin = w->total[w->nq ? seen(s, b, 0) : 0], end = w->total[w->written];
        for (int64_t i = 0; i < w->nq; i++) {
            const REAL total = w->total[seen(s, b, i)];
            const REAL factor = JOINED(exp, REAL)(total - origin), read = JOINED(exp, REAL)(total);
            w->q_cos[i] *= factor, w->q_sin[i] *= factor, w->read_cos[i] *= read, w->read_sin[i] *= read;
        }
        for (int64_t j = 0; j < w->nk; j++) {
            const REAL factor = JOINED(exp, REAL)(origin - w->total[j + 1]);
            const REAL write = j < w->written ? JOINED(exp, REAL)(end - w->total[j + 1]) : 0;
            w->k_cos[j] *= factor, w->k_sin[j] *= factor, w->write_cos[j] *= write, w->write_sin[j] *= write;
        }
    }
    for (int64_t j = w->nk; j < w->width; j++) w->k_cos[j] = w->k_sin[j] = 0;
    NAME(expand)(w, w->q, w->read_cos, w->read_sin, w->nq, w->reading);
    NAME(expand)(w, w->k, w->write_cos, w->write_sin, w->written, w->writing);
    if (!w->nk || !(w->nq || s->strength)) return;
    memset(w->k + w->nk * w->dim, 0, (w->width - w->nk) * w->dim * sizeof(REAL));
    NAME(transpose)(w->k, w->width, w->dim, w->dim, w->k_columns, w->width);
    if (s->strength) NAME(solve)(w, b, state);
    if (!backward) return;
    memset(w->v + w->nk * w->values, 0, (w->width - w->nk) * w->values * sizeof(REAL));
    NAME(transpose)(w->v, w->width, w->values, w->values, w->v_columns, w->width);
}

/* The state S (values, features), transposed, and the normalizer's row after the block: S = e^total S + V^T K. */
static void NAME(write)(const NAME(Work) *w, REAL *state) {
    const int64_t features = w->features, size = features * w->values;
    REAL *norm = state + size, one = 1;
    if (w->s->decay) {
        const REAL factor = JOINED(exp, REAL)(w->total[w->written]);
        for (int64_t i = 0; i < size + features; i++) state[i] *= factor;
    }
    NAME(multiply)(w->s->values, features, w->written, w->v, 1, w->values, w->writing, features, state, features, 1);
    if (w->s->normalizes)
        NAME(multiply)(1, features, w->written, &one, 0, 0, w->writing, features, norm, features, 1);
}

/* Scores of `rows` queries from number i on with the first keys of the block, 0 where a query does not see a key; how
 * many keys they have, padded to vectors. */
static int64_t NAME(score)(const NAME(Work) *w, const Block *b, int64_t i, int64_t rows, REAL *scores) {
    const int64_t width = NAME(padded)(seen(w->s, b, i + rows - 1));
    NAME(multiply)(rows, width, w->s->dim, w->q + i * w->dim, w->dim, 1, w->k_columns, w->width, scores, width, 0);
    return width;
}

static void NAME(hide)(const NAME(Work) *w, const Block *b, int64_t i, int64_t rows, REAL *scores, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = seen(w->s, b, i + r);
        memset(scores + r * width + from, 0, (width - from) * sizeof(REAL));
    }
}

/* The factor of query i and keys from j on. */
static inline VEC NAME(weight)(const NAME(Work) *w, int64_t i, int64_t j) {
    return w->q_cos[i] * *(const VEC *)(w->k_cos + j) + w->q_sin[i] * *(const VEC *)(w->k_sin + j);
}

/* ----------------------------------------------------------------------------------------------------------- forward */

/* Sums and normalizers of the block's queries over its keys and the state. */
static void NAME(read)(NAME(Work) *w, const Block *b) {
    const Scan *s = w->s;
    const int64_t features = w->features, values = w->values;
    const REAL *state = w->state;
    NAME(transpose)(state, values, features, features, w->state_rows, values);
    NAME(multiply)(w->nq, values, features, w->reading, features, 1, w->state_rows, values, w->sums, values, 0);
    for (int64_t i = 0; s->normalizes && i < w->nq; i++)
        w->norms[i] = NAME(dot)(w->reading + i * features, state + values * features, features);
    for (int64_t i = 0; w->nk && i < w->nq; i += STRIP) {
        const int64_t rows = least(STRIP, w->nq - i), width = NAME(score)(w, b, i, rows, w->scores);
        NAME(hide)(w, b, i, rows, w->scores, width);
        for (int64_t r = 0; r < rows; r++) {
            VEC norm = {0};
            for (int64_t j = 0; j < width; j += LANES) {
                VEC *score = (VEC *)(w->scores + r * width + j);
                if (w->weighted) *score *= NAME(weight)(w, i + r, j);
                norm += *score;
            }
            if (s->normalizes) w->norms[i + r] += NAME(total)(norm);
        }
        NAME(multiply)(rows, values, least(width, w->nk), w->scores, width, 1, w->v, values, w->sums + i * values,
                       values, 1);
    }
}

static void NAME(store_output)(const NAME(Work) *w, const Block *b) {
    const Scan *s = w->s;
    for (int64_t i = 0; i < w->nq; i++) {
        REAL *out = (REAL *)s->out + NAME(place)(w, s->out_strides, b->t0 + i), scale = 1;
        NAME(fetch)(w, out, s->out_strides[2], w->nq, s->values);
        if (s->normalizes) {
            const REAL norm = w->norms[i];
            ((REAL *)s->normalizer)[(w->batch * s->heads + w->head) * s->queries + b->t0 + i] = norm;
            scale = 1 / (norm < (REAL)s->floor ? (REAL)s->floor : norm);
        }
        for (int64_t e = 0; e < s->values; e++) out[e] = w->sums[i * w->values + e] * scale;
    }
}

static int NAME(forward)(const Scan *s, int64_t first, int64_t stop) {
    NAME(Work) w[1];
    Block *blocks = malloc(most_blocks(s) * sizeof *blocks);
    const int failed = !blocks || NAME(begin)(w, s, 0);
    for (int64_t item = first; !failed && item < stop; item++) {
        w->batch = item / s->heads, w->head = item % s->heads;
        NAME(load_networks)(w);
        memset(w->state, 0, w->features * (w->values + 1) * sizeof(REAL));
        if (s->first) NAME(convert_state)(w, NAME(state_at)(w, s->first, 1, 0), w->state, 0);
        const int64_t count = NAME(cut)(w, blocks);
        for (int64_t n = 0; n < count; n++) {
            const Block *b = blocks + n;
            if (s->states && (!n || segment_of(b) != segment_of(b - 1)))
                NAME(convert_state)(w, NAME(state_at)(w, s->states, s->segments, segment_of(b)), w->state, 1);
            NAME(load_block)(w, b, w->state, 0);
            if (w->nq) NAME(read)(w, b);
            if (w->nq) NAME(store_output)(w, b);
            if (w->nk) NAME(write)(w, w->state);
        }
        if (s->last) NAME(convert_state)(w, NAME(state_at)(w, s->last, 1, 0), w->state, 1);
    }
    free(w->arena);
    free(blocks);
    return failed;
}

/* ---------------------------------------------------------------------------------------------------------- backward */

/* Gradients of the sums and normalizers, given those of the outputs, which are sums / normalizers. */
static void NAME(load_gradients)(const NAME(Work) *w, const Block *b) {
    const Scan *s = w->s;
    const int64_t values = w->values;
    const REAL floor = s->floor, *norms = s->normalizer;
    NAME(load)(w, s->to_out, s->to_out_strides, b->t0, w->nq, s->values, values, NULL, w->to_sums);
    if (!s->normalizes) return;
    norms += (w->batch * s->heads + w->head) * s->queries + b->t0;
    NAME(load)(w, s->out, s->out_strides, b->t0, w->nq, s->values, values, NULL, w->sums);
    for (int64_t i = 0; i < w->nq; i++) {
        REAL *to_sums = w->to_sums + i * values;
        const REAL scale = 1 / (norms[i] < floor ? floor : norms[i]);
        w->to_norms[i] = norms[i] < floor ? 0 : -scale * NAME(dot)(to_sums, w->sums + i * values, values);
        for (int64_t e = 0; e < values; e += LANES) *(VEC *)(to_sums + e) *= scale;
    }
}

/* Gradients that come from the pairs of queries and keys in the block. */
static void NAME(pairs_back)(NAME(Work) *w, const Block *b, REAL *to_query_angles, REAL *to_key_angles) {
    const Scan *s = w->s;
    const int64_t dim = w->dim, values = w->values;
    memset(w->along_cos, 0, w->width * sizeof(REAL));
    memset(w->along_sin, 0, w->width * sizeof(REAL));
    for (int64_t i = 0; i < w->nq; i += STRIP) {
        const int64_t rows = least(STRIP, w->nq - i), width = NAME(score)(w, b, i, rows, w->scores);
        const int64_t count = least(width, w->nk);
        REAL *to_sums = w->to_sums + i * values;
        NAME(multiply)(rows, width, s->values, to_sums, values, 1, w->v_columns, w->width, w->to_scores, width, 0);
        for (int64_t r = 0; s->normalizes && r < rows; r++)
            for (int64_t j = 0; j < width; j++) w->to_scores[r * width + j] += w->to_norms[i + r];
        NAME(hide)(w, b, i, rows, w->scores, width);
        NAME(hide)(w, b, i, rows, w->to_scores, width);
        for (int64_t r = 0; w->weighted && r < rows; r++) {
            VEC to_cos = {0}, to_sin = {0};
            for (int64_t j = 0; j < width; j += LANES) {
                VEC *score = (VEC *)(w->scores + r * width + j), *to_score = (VEC *)(w->to_scores + r * width + j);
                const VEC weight = NAME(weight)(w, i + r, j), to_weight = *score * *to_score;
                to_cos += to_weight * *(VEC *)(w->k_cos + j);
                to_sin += to_weight * *(VEC *)(w->k_sin + j);
                *(VEC *)(w->along_cos + j) += to_weight * w->q_cos[i + r];
                *(VEC *)(w->along_sin + j) += to_weight * w->q_sin[i + r];
                *score *= weight;
                *to_score *= weight;
            }
            if (to_query_angles)
                to_query_angles[i + r] += NAME(total)(to_sin * w->q_cos[i + r] - to_cos * w->q_sin[i + r]);
        }
        NAME(multiply)(count, values, rows, w->scores, 1, width, to_sums, values, w->to_v, values, 1);
        NAME(multiply)(count, dim, rows, w->to_scores, 1, width, w->q + i * dim, dim, w->to_k, dim, 1);
        NAME(multiply)(rows, dim, count, w->to_scores, width, 1, w->k, dim, w->to_q + i * dim, dim, 1);
    }
    for (int64_t j = 0; to_key_angles && j < w->nk; j++)
        to_key_angles[j] += w->k_cos[j] * w->along_sin[j] - w->k_sin[j] * w->along_cos[j];
}

/* Gradients of the block's log-decays, whose factors of scores are e^(total seen by the query - total of the key).
 *
 * A score with gradient g adds g * score to the gradient of the former total and subtracts it from that of the latter:
 * summed over scores, a query's dot product with its gradient, and a key's. What is written keeps the factor of the
 * decays after it. Sums that cannot cancel are summed from the other end. */
static void NAME(decays_back)(NAME(Work) *w, const Block *b, const REAL *state, const REAL *back) {
    const Scan *s = w->s;
    REAL *out = (REAL *)NAME(of_keys)(w, s->to_decay, b->s0), sum = 0;
    for (int64_t i = 0; i < w->nq; i++)
        w->later[seen(s, b, i) - 1] += NAME(dot)(w->q + i * w->dim, w->to_q + i * w->dim, w->dim);
    for (int64_t j = w->nk - 1; j >= 0; j--) out[j] = sum += w->later[j];
    sum = JOINED(exp, REAL)(w->total[w->written]) * NAME(dot)(state, back, w->features * (w->values + 1));
    for (int64_t j = 0; j < w->written; j++) {
        out[j] += sum;
        sum += NAME(dot)(w->writing + j * w->features, w->to_writing + j * w->features, w->features);
    }
}

/* Gradients of the block's queries, keys and values, given the state before it and the gradient of the state after it,
 * which becomes the gradient of the state before; both are (values, features) with the normalizer's row behind. */
static void NAME(block_back)(NAME(Work) *w, const Block *b, const REAL *state, REAL *back) {
    const Scan *s = w->s;
    const int64_t dim = w->dim, values = w->values, features = w->features, size = values * features;
    const REAL *norm = state + size, one = 1;
    REAL *norm_back = back + size;
    REAL *to_query_angles = w->query_network.to_angles, *to_key_angles = w->key_network.to_angles;
    NAME(load_block)(w, b, state, 1);
    memset(to_query_angles, 0, NAME(padded)(w->nq) * sizeof(REAL));
    memset(to_key_angles, 0, w->width * sizeof(REAL));
    if (w->nq) {
        NAME(load_gradients)(w, b);
        NAME(multiply)(w->nq, features, s->values, w->to_sums, values, 1, state, features, w->to_reading, features, 0);
        if (s->normalizes)
            NAME(multiply)(w->nq, features, 1, w->to_norms, 1, 0, norm, features, w->to_reading, features, 1);
        memset(w->to_q, 0, w->nq * dim * sizeof(REAL));
        NAME(expand_back)(w, w->q, w->read_cos, w->read_sin, w->nq, w->to_reading, w->to_q, to_query_angles);
    }
    if (w->nk) {
        memset(w->to_k, 0, w->width * dim * sizeof(REAL));
        memset(w->to_v, 0, w->width * values * sizeof(REAL));
        NAME(transpose)(back, values, features, features, w->state_rows, values);
        NAME(multiply)(w->written, values, features, w->writing, features, 1, w->state_rows, values, w->to_v, values, 1);
        if (w->nq) NAME(pairs_back)(w, b, to_query_angles, to_key_angles);
        if (s->strength) NAME(solve_back)(w, b, state);
        for (int64_t j = 0; s->decay && j < w->nk; j++)
            w->later[j] = -NAME(dot)(w->k + j * dim, w->to_k + j * dim, dim);
        for (int64_t j = 0; s->strength && j < w->nk; j++) {
            if (s->decay) w->later[j] += NAME(dot)(w->k + j * dim, w->to_taking + j * dim, dim);
            for (int64_t d = 0; d < dim; d++) w->to_k[j * dim + d] += w->to_taking[j * dim + d];
        }
        NAME(multiply)(w->written, features, s->values, w->v, values, 1, back, features, w->to_writing, features, 0);
        if (s->normalizes)
            NAME(multiply)(w->written, features, 1, &one, 0, 0, norm_back, features, w->to_writing, features, 1);
        NAME(expand_back)(w, w->k, w->write_cos, w->write_sin, w->written, w->to_writing, w->to_k, to_key_angles);
        if (s->decay) {
            const REAL factor = JOINED(exp, REAL)(w->total[w->written]);
            NAME(decays_back)(w, b, state, back);
            for (int64_t f = 0; f < size + features; f++) back[f] *= factor;
        }
        if (s->strength) NAME(multiply)(s->values, dim, w->nk, w->to_v, 1, values, w->taking, dim, back, dim, 1);
        NAME(tokens_back)(w, &w->key_network, w->k, w->raw_k, w->nk, 1, w->to_k);
        NAME(store)(w, s->to_k, s->to_k_strides, b->s0, w->nk, s->dim, dim, s->keep, w->to_k);
        NAME(store)(w, s->to_v, s->to_v_strides, b->s0, w->nk, s->values, values, s->keep, w->to_v);
    }
    if (!w->nq) return;
    NAME(multiply)(s->values, features, w->nq, w->to_sums, 1, values, w->reading, features, back, features, 1);
    if (s->normalizes)
        NAME(multiply)(1, features, w->nq, w->to_norms, 0, 1, w->reading, features, norm_back, features, 1);
    NAME(tokens_back)(w, &w->query_network, w->q, w->raw_q, w->nq, s->query_scale, w->to_q);
    NAME(store)(w, s->to_q, s->to_q_strides, b->t0, w->nq, s->dim, dim, NULL, w->to_q);
}

/* From the last segment to the first: the states before its blocks are computed again from the saved one, then come
 * the gradients of its blocks, from the last to the first. */
static int NAME(backward)(const Scan *s, int64_t first, int64_t stop) {
    NAME(Work) w[1];
    Block *blocks = malloc(most_blocks(s) * sizeof *blocks);
    int failed = NAME(begin)(w, s, 1) || !blocks;
    const int64_t size = w->features * (w->values + 1);
    REAL *states = NULL;
    int64_t room = 0;
    for (int64_t item = first; !failed && item < stop; item++) {
        w->batch = item / s->heads, w->head = item % s->heads;
        memset(w->state, 0, size * sizeof(REAL));
        memset(w->state_back, 0, size * sizeof(REAL));
        if (s->to_last) NAME(convert_state)(w, NAME(state_at)(w, s->to_last, 1, 0), w->state_back, 0);
        NAME(load_networks)(w);
        int64_t count = NAME(cut)(w, blocks);
        while (count && !failed) {
            int64_t begin = count - 1, needed = count - 1;
            const int64_t segment = segment_of(blocks + begin);
            while (begin && segment_of(blocks + begin - 1) == segment) begin--;
            while (needed > begin && !s->decay && !s->strength && blocks[needed].t0 == blocks[needed].t1) needed--;
            if (room < needed - begin + 1) {
                free(states);
                room = needed - begin + 1;
                failed = posix_memalign((void **)&states, 64, room * size * sizeof(REAL));
                if (failed) states = NULL;
                if (failed) break;
            }
            NAME(convert_state)(w, NAME(state_at)(w, s->states, s->segments, segment), w->state, 0);
            memcpy(states, w->state, size * sizeof(REAL));
            for (int64_t n = begin; n < needed; n++) {
                const Block keys = {blocks[n].t0, blocks[n].t0, blocks[n].s0, blocks[n].s1};
                REAL *next = states + (n + 1 - begin) * size;
                memcpy(next, next - size, size * sizeof(REAL));
                if (keys.s0 == keys.s1) continue;
                NAME(load_block)(w, &keys, next, 0);
                NAME(write)(w, next);
            }
            for (; count > begin; count--) {
                const int64_t n = least(count - 1, needed) - begin; /* the states after the last that is needed: any */
                NAME(block_back)(w, blocks + count - 1, states + n * size, w->state_back);
            }
        }
        if (s->query_network) {
            NAME(store_network)(w, &w->query_network, s->to_query_network);
            NAME(store_network)(w, &w->key_network, s->to_key_network);
        }
        if (s->to_first) NAME(convert_state)(w, NAME(state_at)(w, s->to_first, 1, 0), w->state_back, 1);
    }
    free(states);
    free(w->arena);
    free(blocks);
    return failed;
}

#undef LANES
#undef VEC
#undef RIFFLE
#undef LOW_PLACES
#undef HIGH_PLACES
