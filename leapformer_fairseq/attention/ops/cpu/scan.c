/* Linear attention over whole sequences, forward and backward: o_t = sum_{s < n(t)} (phi(q_t) . phi(k_s)) v_s, divided
 * by its normalizer, with a state S = sum_s phi(k_s) v_s^T that leads from block to block and decays on the way. With
 * the delta rule, what a key reads from the state is replaced (`solve`).
 *
 * ../scan.py calls it; ../linear.py and ../recurrent.py compute the same in PyTorch. Plain C with vectors of GCC and
 * clang, without PyTorch's headers: it compiles in seconds and works with every version. Compiled as it is for float,
 * and by scan_double.c for double. Buffers are rows of vectors: their widths are padded with zeros.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef REAL
#define REAL float
#define PLACE int32_t
#endif

/* Bytes of a vector, PAIRS_n of half of its numbers, and rows and vectors of a product that registers hold. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define PAIRS_float PAIRS_8
#define PAIRS_double PAIRS_4
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define PAIRS_float PAIRS_4
#define PAIRS_double PAIRS_2
#else
#define VECTOR_BYTES 16
#define PAIRS_float PAIRS_2
#define PAIRS_double PAIRS_1
#endif
#define TILE_ROWS (VECTOR_BYTES == 64 ? 8 : 4)
#define TILE_VECTORS (VECTOR_BYTES == 16 ? 4 : 2)

#define STRIP 16      /* queries whose scores are computed together */
#define WRITTEN 64    /* keys that are written together where no query is between them */
#define SEGMENT 1024  /* tokens between two states that are saved for the backward pass */
#define SHORTEST 1e-6 /* vectors that are much shorter do not get length one, as in ../../recurrent/delta.py */
#define LITTLE 40     /* largest exponent of decays, as in ../scan.py */

/* Activations as in ../scan.py: max(x, 0), elu(x) + 1, and x sigmoid(x), scaled to length one. */
enum { NONE, RELU, ELU, DIRECTION };

/* A tensor (B, H, n, ..), or NULL, and its strides of batch entry, head and token, in numbers. A token's numbers are
 * contiguous; where each token has one, those of a head are. */
typedef struct { void *numbers; int64_t strides[3]; } Tensor;

/* Queries or keys, and gradients. */
typedef struct {
    Tensor x;       /* (B, H, n, D) */
    Tensor turns;   /* (B, H, n, 2) cosine and sine of each token, or NULL */
    Tensor network; /* (B, H, numbers), what computes them instead, see `Side`; or NULL */
    Tensor to_x, to_network;
} Tokens;

/* As `Scan` in __init__.py. */
typedef struct {
    int64_t batch, heads, queries, keys;
    int64_t dim, values;     /* D of queries and keys, E of values */
    int64_t shared, growing; /* keys that every query sees; queries that each see more than the one before */
    int64_t unit, gain;      /* of the growing queries, `unit` neighbours see `gain` keys more than those before */
    int64_t ahead;           /* of these keys, the last ones are not written to the state */
    int64_t block;           /* growing queries that are compared with their keys in pairs, a multiple of `unit`; 0: none,
                                for a large `gain` */
    int64_t activation;      /* NONE, .. */
    int64_t turned;          /* features are [x cos, x sin] */
    int64_t hidden;          /* units of proportion networks */
    int64_t gates;           /* log-decays of a key: one, or one for each of D features that are not turned */
    int64_t raw;             /* proportion networks read vectors before the activation */
    int64_t normalizes;      /* the state has a column for the normalizer, by which sums are divided */
    int64_t threads;
    double floor;            /* of the normalizer */
    double query_scale;      /* of queries as directions */
    Tokens q, k;
    Tensor v, to_v;                 /* (B, H, S, E) */
    Tensor decay, to_decay;         /* (B, H, S) or (B, H, S, D) log-decays <= 0, or NULL */
    Tensor strength, to_strength;   /* (B, H, S) of the delta rule, or NULL: values are added */
    Tensor keep;                    /* (B, H, S), 0 at padding, or NULL */
    Tensor first, to_first;         /* (B, H, F, E + normalizes) state before the first key, or NULL: zeros */
    Tensor last, to_last;           /* the state after the last key, or NULL; its gradient, or NULL: zeros */
    Tensor out, to_out, normalizer; /* (B, H, T, E), (B, H, T) */
    Tensor states;                  /* (B, H, segments, F, E + normalizes) before all segments but the first, for the
                                       backward pass, or NULL */
} Scan;

/* Queries [t0, t1), which see the state and, of keys [s0, s1), the first ones; then these keys are
 * written. Without keys they only read, without queries keys are only written. */
typedef struct { int64_t t0, t1, s0, s1; } Block;

#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)

/* A vector, masks and places of its numbers, how many these are, and the vector at an address. */
typedef REAL vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef PLACE places __attribute__((vector_size(VECTOR_BYTES)));
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define AT(address) (*(vec *)(address))

/* Loops that are unrolled, and functions of which each call has code of its own. */
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)
#define INLINE static inline __attribute__((always_inline))

/* ----------------------------------------------------------------------------------------------- rows and products */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* e^x with an error below 2 units in the last place, without branches, so that loops of it become vectors. */
static inline float exp_float(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    const union {
        float number;
        uint32_t bits; /* the last ones are the whole number's, also if it is negative */
    } shifted = {x * 1.44269504f + shift}, power = {.bits = (shifted.bits + 127) << 23};
    const float whole = shifted.number - shift, r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    const float y = (((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r;
    return (((y + 1.6666665459e-1f) * r + 5.0000001201e-1f) * (r * r) + r + 1.0f) * power.number;
}

static inline REAL exponential(REAL x) { return sizeof x == sizeof(float) ? exp_float(x) : (REAL)exp(x); }

static inline REAL sigmoid(REAL x) { return 1 / (1 + exponential(-x)); }

/* sin(pi / 2 * x) for x in [0, 1], never negative; cos(pi / 2 * x) is that of 1 - x. */
static inline REAL turned(REAL x) {
    const REAL a = x * (REAL)1.5707963267948966, b = a * a;
    if (sizeof x != sizeof(float)) return sin(a);
    const REAL y = ((1.60590438e-10f * b - 2.50521084e-8f) * b + 2.75573192e-6f) * b - 1.98412698e-4f;
    return ((y * b + 8.33333333e-3f) * b - 1.66666667e-1f) * b * a + a;
}

/* x where the mask is set, elsewhere `other`. */
static inline vec where(places mask, vec x, vec other) { return (vec)(((places)x & mask) | ((places)other & ~mask)); }

static inline vec relu(vec x) { return where(x < 0, (vec){0}, x); }

/* The sum of a vector's numbers. */
INLINE REAL total_of(vec x) {
    REAL numbers[LANES];
    AT(numbers) = x;
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) numbers[i] += numbers[i + half];
    return numbers[0];
}

static REAL dot(const REAL *a, const REAL *b, int64_t count) {
    vec sums = {0};
    for (int64_t i = 0; i < count; i += LANES) sums += AT(a + i) * AT(b + i);
    return total_of(sums);
}

static inline void clear(REAL *x, int64_t count) { memset(x, 0, count * sizeof(REAL)); }

/* Copies numbers, and fills up with zeros to `room`. */
static inline void copy(const REAL *x, int64_t count, REAL *out, int64_t room) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) AT(out + i) = AT(x + i);
    for (; i < room; i++) out[i] = i < count ? x[i] : 0;
}

static inline void scale(const REAL *x, REAL factor, int64_t count, REAL *out) {
    for (int64_t i = 0; i < count; i += LANES) AT(out + i) = factor * AT(x + i);
}

static inline void multiply(const REAL *x, const REAL *y, int64_t count, REAL *out) {
    for (int64_t i = 0; i < count; i += LANES) AT(out + i) = AT(x + i) * AT(y + i);
}

static inline void add(const REAL *x, int64_t count, REAL *out) {
    for (int64_t i = 0; i < count; i++) out[i] += x[i];
}

/* Rows and vectors of `product` that registers hold. */
INLINE void tile(const int rows, const int vectors, int64_t depth, const REAL *a, int64_t ai, int64_t ak,
                 const REAL *b, REAL *c, int64_t ld, int adds) {
    vec sums[TILE_ROWS][TILE_VECTORS];
    EACH(i, rows) EACH(j, vectors) sums[i][j] = adds ? AT(c + i * ld + j * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++, a += ak, b += ld) {
        vec right[TILE_VECTORS];
        EACH(j, vectors) right[j] = AT(b + j * LANES);
        EACH(i, rows) {
            const vec left = a[i * ai] - (vec){0};
            EACH(j, vectors) sums[i][j] += left * right[j];
        }
    }
    EACH(i, rows) EACH(j, vectors) AT(c + i * ld + j * LANES) = sums[i][j];
}

INLINE void tiles(const int vectors, int64_t m, int64_t depth, const REAL *a, int64_t ai, int64_t ak, const REAL *b,
                  REAL *c, int64_t ld, int adds) {
    for (; m >= TILE_ROWS; m -= TILE_ROWS, a += TILE_ROWS * ai, c += TILE_ROWS * ld)
        tile(TILE_ROWS, vectors, depth, a, ai, ak, b, c, ld, adds);
    for (; m >= 2; m -= 2, a += 2 * ai, c += 2 * ld) tile(2, vectors, depth, a, ai, ak, b, c, ld, adds);
    if (m) tile(1, vectors, depth, a, ai, ak, b, c, ld, adds);
}

/* c (m, n) = or += a (m, depth) b (depth, n); n is a multiple of LANES. Element (i, k) of a is a[i * ai + k * ak]; rows
 * of b and c begin after `ld` numbers. */
static void product(int64_t m, int64_t n, int64_t depth, const REAL *a, int64_t ai, int64_t ak, const REAL *b, REAL *c,
                    int64_t ld, int adds) {
    for (; n >= TILE_VECTORS * LANES; n -= TILE_VECTORS * LANES, b += TILE_VECTORS * LANES, c += TILE_VECTORS * LANES)
        tiles(TILE_VECTORS, m, depth, a, ai, ak, b, c, ld, adds);
    for (; n > 0; n -= LANES, b += LANES, c += LANES) tiles(1, m, depth, a, ai, ak, b, c, ld, adds);
}

/* Numbers of two vectors in turn: from their lower or their higher halves, at places a, a + n, a + 1, a + 1 + n, .. */
#define PAIRS_1(a, n) (a), (a) + (n)
#define PAIRS_2(a, n) PAIRS_1(a, n), PAIRS_1((a) + 1, n)
#define PAIRS_4(a, n) PAIRS_2(a, n), PAIRS_2((a) + 2, n)
#define PAIRS_8(a, n) PAIRS_4(a, n), PAIRS_4((a) + 4, n)
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif
#define RIFFLE_LOW(a, b) SHUFFLE(a, b, JOINED(PAIRS, REAL)(0, LANES))
#define RIFFLE_HIGH(a, b) SHUFFLE(a, b, JOINED(PAIRS, REAL)(LANES / 2, LANES))

/* out (n, m) = x (m, n) transposed; both are multiples of LANES. */
static void transpose(const REAL *x, int64_t m, int64_t n, REAL *out) {
    for (int64_t i0 = 0; i0 < m; i0 += LANES)
        for (int64_t j0 = 0; j0 < n; j0 += LANES) {
            vec rows[LANES], mixed[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = AT(x + (i0 + i) * n + j0);
            /* After log2(LANES) riffles, rows and columns have changed places. */
            for (int step = 1; step < LANES; step *= 2) {
                for (int i = 0; i < LANES / 2; i++) {
                    mixed[2 * i] = RIFFLE_LOW(rows[i], rows[i + LANES / 2]);
                    mixed[2 * i + 1] = RIFFLE_HIGH(rows[i], rows[i + LANES / 2]);
                }
                for (int i = 0; i < LANES; i++) rows[i] = mixed[i];
            }
            for (int j = 0; j < LANES; j++) AT(out + (j0 + j) * m + i0) = rows[j];
        }
}

/* x (count, width) as columns, (width, padded count); sets the rows of x to which it is padded. */
static void to_columns(REAL *x, int64_t count, int64_t width, REAL *out) {
    clear(x + count * width, (padded(count) - count) * width);
    transpose(x, padded(count), width, out);
}

/* --------------------------------------------------------------------------------------------------------- buffers */

/* Buffers of queries or keys, n tokens, and how many numbers they have. Their proportion network is
 * p = sigmoid(last . relu(weight^T x + bias) + last_bias); its layer has a row for each hidden unit. */
#define SIDE_BUFFERS(BUFFER)                                                                                         \
    BUFFER(x, n * dim) BUFFER(raw, n * dim) BUFFER(lengthened, n) /* after and before activation; by what scaled */  \
    BUFFER(cos, n) BUFFER(sin, n) BUFFER(decayed, n * dim) BUFFER(factors, n * w->gates) /* see `fade` */            \
    BUFFER(expanded, n * features) BUFFER(to_x, n * dim) BUFFER(to_features, n * features) BUFFER(to_angles, n)      \
    BUFFER(weight_rows, hidden * dim) BUFFER(to_weight, hidden * dim) /* the weight transposed; its gradient */      \
    BUFFER(to_bias, (2 * hidden + 1) * LANES) /* gradients of bias, last and last_bias, as vectors to be summed */   \
    BUFFER(columns, n * dim) BUFFER(to_input, n * dim) /* what the network reads, as columns; its gradient */        \
    BUFFER(layer, hidden * n) BUFFER(to_layer, hidden * n) BUFFER(slopes, n) /* of the angles */

/* The other buffers, for so many `queries` and `keys` of a block. */
#define BUFFERS(BUFFER)                                                                                              \
    BUFFER(v, keys * values) BUFFER(k_columns, keys * dim) BUFFER(v_columns, keys * values) /* transposed */         \
    BUFFER(total, (keys + 1) * w->gates) BUFFER(to_decay, keys * w->gates) BUFFER(seen, queries * w->gates)          \
    BUFFER(by_gates, dim) BUFFER(ones, keys) /* factors or sums; the normalizer's column of v */                     \
    BUFFER(scores, STRIP * keys) BUFFER(sums, queries * values) BUFFER(to_scores, STRIP * keys)                      \
    BUFFER(to_sums, queries * values) BUFFER(to_norms, queries) BUFFER(to_v, keys * values)                          \
    BUFFER(state, size) BUFFER(state_back, size) /* (features, values), and the normalizer's column behind */        \
    BUFFER(state_columns, size) BUFFER(back_columns, size)                                                           \
    BUFFER(rest, delta * values) BUFFER(reading, delta * dim) BUFFER(to_reading, delta * dim) /* see `solve` */      \
    BUFFER(system, delta * keys) BUFFER(to_system, delta * keys) BUFFER(rising, delta * w->gates)

#define MEMBER(name, numbers) REAL *name;
#define TAKE(name, numbers) x->name = take(w, numbers);

/* Queries or keys of the block at hand, and their proportion network of the head at hand. */
typedef struct {
    const Tokens *given;
    const REAL *keep;                 /* (tokens) of the batch entry at hand, 0 at padding, or NULL */
    REAL most;                        /* length of directions */
    int64_t start, count, width;      /* the first token, how many, and padded to vectors */
    const REAL *weight, *bias, *last; /* as they come, packed: (D, hidden), (hidden), (hidden), last_bias */
    REAL *scored, *features;          /* what is compared, and what reads a state or is written: buffers below */
    SIDE_BUFFERS(MEMBER)
} Side;

/* What one thread works with: its heads, sizes, the head and the block at hand, and buffers. */
typedef struct {
    const Scan *s;
    pthread_t thread;
    int failed, fades;                   /* without memory; with decays */
    int empty, unread, wanted;           /* the state before the block at hand is zeros; nobody reads the one after it;
                                            the gradient of the one before is wanted */
    int64_t first, stop, batch, head;    /* the heads of all batch entries, from the first on, and the one at hand */
    int64_t dim, values, features, size; /* D, E and features of a token, padded to vectors; numbers of a state */
    int64_t gates;                       /* log-decays of a key, padded to vectors if there are several */
    int64_t direction;                   /* 1 or -1: blocks are visited forward or backward */
    int64_t count, room;                 /* of blocks; of states of a segment, see `backward` */
    Block *blocks;
    REAL *arena, *states;
    int64_t used;                        /* numbers of the arena */
    Side q, k;
    int64_t written, lead;               /* of the block's keys, the first ones: are written; all its queries see */
    BUFFERS(MEMBER)
} Work;

static REAL *take(Work *w, int64_t numbers) {
    REAL *buffer = w->arena ? w->arena + w->used : NULL;
    w->used += padded(numbers);
    return buffer;
}

static void lay_out_side(Work *w, Side *x, int64_t n) {
    const int64_t dim = w->dim, features = w->features, hidden = w->s->hidden;
    SIDE_BUFFERS(TAKE)
    x->scored = w->fades && !w->s->turned ? x->decayed : x->x, x->features = w->s->turned ? x->expanded : x->scored;
    for (int64_t i = 0; w->arena && i < n * w->gates; i++) x->factors[i] = 1;
}

/* The buffers; called once without an arena to measure it, and once with it. */
static void lay_out(Work *w) {
    const int64_t gained = w->s->block / w->s->unit * w->s->gain + least(w->s->shared, WRITTEN);
    const int64_t dim = w->dim, values = w->values, size = w->size;
    const int64_t queries = padded(w->s->block > WRITTEN ? w->s->block : WRITTEN);
    const int64_t keys = padded(gained > WRITTEN ? gained : WRITTEN), delta = w->s->strength.numbers ? keys : 0;
    const int64_t parts = (w->s->shared + w->s->keys + 2 * w->s->queries) / WRITTEN + (delta ? w->s->keys : 0);
    const int64_t blocks = parts + 2 * (w->s->growing / w->s->unit) + 6; /* at most */
    Work *x = w;
    w->used = 0;
    w->blocks = (Block *)take(w, blocks * (int64_t)(sizeof(Block) / sizeof(REAL)));
    lay_out_side(w, &w->q, queries);
    lay_out_side(w, &w->k, keys);
    BUFFERS(TAKE)
    for (int64_t j = 0; w->arena && j < keys; j++) w->ones[j] = 1;
}

/* Multiplies the vectors of tokens by one number for each, or for each of its features. */
static void scale_rows(const Work *w, int64_t count, const REAL *numbers, const REAL *x, REAL *out) {
    const int64_t dim = w->dim;
    for (int64_t t = 0; t < count; t++, x += dim, out += dim, numbers += w->gates)
        if (w->gates == 1) scale(x, *numbers, dim, out);
        else multiply(x, numbers, dim, out);
}

/* ----------------------------------------------------------------------------------------------- tokens and states */

/* The numbers of a token of the head at hand, or NULL without a tensor. */
static REAL *at(const Work *w, const Tensor *x, int64_t token) {
    if (!x->numbers) return NULL;
    return (REAL *)x->numbers + w->batch * x->strides[0] + w->head * x->strides[1] + token * x->strides[2];
}

/* Whether the block's token number t is padding. */
static inline int is_padding(const Side *x, int64_t t) { return x->keep && !x->keep[x->start + t]; }

/* Loads vectors (count, width) of the block's tokens into `rows`, or stores these there; zeros at padding. */
static void move(const Work *w, const Side *x, const Tensor *tensor, int64_t width, REAL *rows, int store) {
    const int64_t room = store ? width : padded(width), ahead = w->direction * x->count * tensor->strides[2];
    for (int64_t t = 0; t < x->count; t++, rows += padded(width)) {
        REAL *given = at(w, tensor, x->start + t), *out = store ? given : rows;
        /* For the next block: rows of a head are far apart in memory, and the processor does not foresee them. */
        for (int64_t d = 0; d < width; d += 64 / (int64_t)sizeof(REAL)) __builtin_prefetch(given + ahead + d, 0, 2);
        if (is_padding(x, t)) clear(out, room);
        else copy(store ? rows : given, width, out, room);
    }
}

/* Loads a state (F, E + normalizes) into (features, values) with the normalizer's column behind, zeros if there is
 * none; or stores it there, unless there is no room. */
static void move_state(const Work *w, const Tensor *tensor, int64_t number, REAL *state, int store) {
    const int64_t values = w->s->values, dim = w->s->dim;
    REAL *given = at(w, tensor, number), *norm = state + w->features * w->values;
    if (!store) clear(state, w->size);
    for (int64_t f = 0; given && f < w->features; f++, state += w->values, norm++) {
        if (f % w->dim >= dim) continue;
        copy(store ? state : given, values, store ? given : state, values);
        if (w->s->normalizes) *(store ? given + values : norm) = *(store ? norm : given + values);
        given += values + w->s->normalizes;
    }
}

/* Adds to a state features x (n, features) times vectors (n, values), and to its normalizer features times `norms`. */
static void add_to_state(const Work *w, const REAL *x, int64_t n, const REAL *vectors, const REAL *norms, REAL *state) {
    const int64_t values = w->values, features = w->features;
    product(features, values, n, x, 1, features, vectors, state, values, 1);
    if (w->s->normalizes) product(1, features, n, norms, 0, 1, x, state + values * features, features, 1);
}

/* The gradients of features that read a state, given those of what they read, and the state as columns and its
 * normalizer's column `norm`; or, given what they wrote to a state and its gradient, of features that were written. */
static void features_back(const Work *w, int64_t n, const REAL *vectors, const REAL *norms, const REAL *columns,
                          const REAL *norm, REAL *to_features) {
    product(n, w->features, w->s->values, vectors, w->values, 1, columns, to_features, w->features, 0);
    if (w->s->normalizes) product(n, w->features, 1, norms, 1, 0, norm, to_features, w->features, 1);
}

/* -------------------------------------------------------------------------------------------------------- features */

/* Applies the activation to the block's vectors, in place; padding stays zeros. */
static void activate(const Work *w, Side *x) {
    const int64_t dim = w->dim, activation = w->s->activation;
    if (activation == RELU)
        for (int64_t i = 0; i < x->count * dim; i += LANES) AT(x->x + i) = relu(AT(x->x + i));
    for (int64_t t = 0; t < x->count && activation > RELU; t++) {
        REAL *row = x->x + t * dim;
        if (is_padding(x, t)) continue;
        for (int64_t d = 0; d < w->s->dim && activation == ELU; d++)
            row[d] = exponential(row[d] > 0 ? 0 : row[d]) + (row[d] > 0 ? row[d] : 0);
        if (activation == ELU) continue;
        for (int64_t d = 0; d < dim; d++) row[d] *= sigmoid(row[d]);
        x->lengthened[t] = (REAL)(x->most / sqrt(dot(row, row, dim) + SHORTEST * SHORTEST)); /* as in ../unit.py */
        scale(row, x->lengthened[t], dim, row);
    }
}

/* Turns gradients of mapped vectors into those of vectors before the activation. */
static void activate_back(const Work *w, Side *x) {
    const int64_t dim = w->dim, activation = w->s->activation, numbers = x->count * dim;
    for (int64_t i = 0; i < numbers && (activation == RELU || activation == ELU); i += LANES) {
        const vec y = AT(x->x + i), to_y = AT(x->to_x + i); /* the derivative of ELU is min(1, y); NaN stays */
        AT(x->to_x + i) = activation == RELU ? where(y <= 0, (vec){0}, to_y) : where(y < 1, y * to_y, to_y);
    }
    for (int64_t i = 0; i < numbers && activation == DIRECTION; i += dim) {
        const REAL *y = x->x + i, *raw = x->raw + i, factor = x->lengthened[i / dim];
        REAL *to_x = x->to_x + i;
        const REAL rest = factor * SHORTEST, along = dot(y, to_x, dim) / (dot(y, y, dim) + rest * rest);
        for (int64_t d = 0; d < dim; d++) {
            const REAL share = sigmoid(raw[d]), to_silu = factor * (to_x[d] - along * y[d]);
            to_x[d] = to_silu * share * (1 + raw[d] * (1 - share));
        }
    }
}

/* The network of the head at hand; for the backward pass its rows, and gradients of zero. */
static void load_network(const Work *w, Side *x) {
    const int64_t hidden = w->s->hidden, dim = w->dim;
    x->weight = at(w, &x->given->network, 0);
    if (!x->weight) return;
    x->bias = x->weight + w->s->dim * hidden, x->last = x->bias + hidden;
    if (w->direction > 0) return;
    clear(x->weight_rows, hidden * dim);
    for (int64_t d = 0; d < w->s->dim; d++)
        for (int64_t h = 0; h < hidden; h++) x->weight_rows[h * dim + d] = x->weight[d * hidden + h];
    clear(x->to_weight, hidden * dim);
    clear(x->to_bias, (2 * hidden + 1) * LANES);
}

static void store_network(const Work *w, const Side *x) {
    REAL *next = at(w, &x->given->to_network, 0);
    if (!next) return;
    for (int64_t d = 0; d < w->s->dim; d++)
        for (int64_t h = 0; h < w->s->hidden; h++) *next++ = x->to_weight[h * w->dim + d];
    for (int64_t h = 0; h < 2 * w->s->hidden + 1; h++) *next++ = total_of(AT(x->to_bias + h * LANES));
}

/* Cosines and sines of the angles pi / 2 * p of tokens, whose network reads `input`. */
static void proportions(const Work *w, Side *x, REAL *input) {
    const int64_t hidden = w->s->hidden, width = x->width;
    to_columns(input, x->count, w->dim, x->columns);
    product(hidden, width, w->s->dim, x->weight, 1, hidden, x->columns, x->layer, width, 0);
    for (int64_t t = 0; t < width; t += LANES) {
        vec sum = x->last[hidden] - (vec){0};
        for (int64_t h = 0; h < hidden; h++) {
            vec *unit = &AT(x->layer + h * width + t);
            sum += x->last[h] * (*unit = relu(*unit + x->bias[h]));
        }
        AT(x->slopes + t) = sum;
    }
    for (int64_t t = 0; t < width; t++) {
        /* Of p and 1 - p the smaller one is computed first, with an exponent that cannot overflow. */
        const REAL y = x->slopes[t], e = exponential(y < 0 ? y : -y), most = 1 / (1 + e), least = e / (1 + e);
        const REAL p = y < 0 ? least : most, rest = y < 0 ? most : least;
        x->sin[t] = turned(p), x->cos[t] = turned(rest);
        x->slopes[t] = (REAL)1.5707963267948966 * p * rest;
    }
}

/* Adds the gradients of the network's parameters, and sets those of its input, given those of the angles. */
static void proportions_back(const Work *w, Side *x, const REAL *input) {
    const int64_t dim = w->dim, hidden = w->s->hidden, width = x->width;
    REAL *to_last = x->to_bias + hidden * LANES;
    for (int64_t t = 0; t < width; t += LANES) {
        const vec to_sum = AT(x->to_angles + t) * AT(x->slopes + t);
        for (int64_t h = 0; h < hidden; h++) {
            const vec unit = AT(x->layer + h * width + t), to_unit = where(unit <= 0, (vec){0}, x->last[h] * to_sum);
            AT(x->to_layer + h * width + t) = to_unit;
            AT(x->to_bias + h * LANES) += to_unit;
            AT(to_last + h * LANES) += unit * to_sum;
        }
        AT(to_last + hidden * LANES) += to_sum;
    }
    product(hidden, dim, x->count, x->to_layer, width, 1, input, x->to_weight, dim, 1);
    product(x->count, dim, hidden, x->to_layer, 1, width, x->weight_rows, x->to_input, dim, 0);
}

/* Turned features of the first n tokens. */
static void expand(const Work *w, Side *x, int64_t n) {
    for (int64_t t = 0; w->s->turned && t < n; t++) {
        REAL *row = x->scored + t * w->dim, *out = x->features + t * w->features;
        scale(row, x->cos[t], w->dim, out), scale(row, x->sin[t], w->dim, out + w->dim);
    }
}

/* Adds to gradients of vectors that were compared those of the features of the first n, and to those of angles, by
 * which (cos, sin) has the derivative (-sin, cos). */
static void expand_back(const Work *w, Side *x, int64_t n) {
    const int64_t dim = w->dim;
    if (!w->s->turned) add(x->to_features, n * dim, x->to_x);
    for (int64_t t = 0; w->s->turned && t < n; t++) {
        const REAL *to_features = x->to_features + t * w->features, cos = x->cos[t], sin = x->sin[t];
        vec to_angle = {0};
        for (int64_t d = 0; d < dim; d += LANES) {
            const vec to_cos = AT(to_features + d), to_sin = AT(to_features + dim + d);
            AT(x->to_x + t * dim + d) += to_cos * cos + to_sin * sin;
            to_angle += AT(x->scored + t * dim + d) * (to_sin * cos - to_cos * sin);
        }
        x->to_angles[t] += total_of(to_angle);
    }
}

/* Loads and maps the block's queries or keys [start, stop). */
static void load_tokens(const Work *w, Side *x, int64_t start, int64_t stop) {
    x->start = start, x->count = stop - start, x->width = padded(x->count);
    move(w, x, &x->given->x, w->s->dim, x->x, 0);
    if (w->s->raw || w->s->activation == DIRECTION) memcpy(x->raw, x->x, x->count * w->dim * sizeof(REAL));
    activate(w, x);
    if (x->weight) proportions(w, x, w->s->raw ? x->raw : x->x);
    for (int64_t t = 0; t < x->count && !x->weight; t++) {
        const REAL *turn = at(w, &x->given->turns, start + t);
        x->cos[t] = turn ? turn[0] : 1, x->sin[t] = turn ? turn[1] : 0;
    }
}

/* Stores gradients of queries or keys, given those of mapped vectors and of angles. */
static void store_gradients(const Work *w, Side *x) {
    const int64_t raw = w->s->raw, read = x->weight ? x->count * w->dim : 0; /* numbers that the network reads */
    if (read) proportions_back(w, x, raw ? x->raw : x->x);
    if (!raw) add(x->to_input, read, x->to_x);
    activate_back(w, x);
    if (raw) add(x->to_input, read, x->to_x);
    move(w, x, &x->given->to_x, w->s->dim, x->to_x, 1);
}

/* ---------------------------------------------------------------------------------------------------------- blocks */

/* Up to which of keys [from, stop) no decay cumulated from there is below e^-LITTLE. */
static int64_t mild(Work *w, int64_t from, int64_t stop) {
    REAL *total = w->total;
    clear(total, w->gates);
    for (int64_t j = from; w->fades && j < stop; j++) {
        const REAL *decays = at(w, &w->s->decay, j);
        for (int64_t g = 0; g < w->s->gates; g++)
            if ((total[g] += decays[g]) < -LITTLE) return j;
    }
    return stop;
}

/* Sets the blocks of the head at hand. One ends early where decays would make a factor of keys larger than e^LITTLE. */
static void cut(Work *w) {
    const Scan *s = w->s;
    const int delta = s->strength.numbers != NULL;
    w->count = 0;
    for (int64_t t = 0, key = 0; t < s->queries || key < s->keys; w->count++) {
        const int64_t grows = t < s->growing, unit = t / s->unit; /* t sees keys before `seen` */
        const int64_t stop = grows ? least(s->shared + unit * s->gain, s->keys) : s->keys;
        const int64_t seen = least(stop + s->gain, s->keys), last = grows ? (unit + 1) * s->unit : s->queries;
        Block *b = w->blocks + w->count;
        *b = (Block){t, t, key, key};
        const int64_t together = key == stop || (!t && !key && grows && stop <= WRITTEN); /* also with what all see */
        if (together && key < seen && s->block && mild(w, key + 1, seen) == seen) { /* pairs */
            const int64_t most = mild(w, seen, least(stop + s->block / s->unit * s->gain, s->keys));
            b->t1 = least(last, s->growing), b->s1 = seen;
            while (b->t1 < s->growing && b->t1 - t < s->block && least(b->s1 + s->gain, s->keys) <= most)
                b->t1 = least(b->t1 + s->unit, s->growing), b->s1 = least(b->s1 + s->gain, s->keys);
        } else if (key < seen) { /* keys that are written before they are read, being many or decaying strongly */
            b->s1 = least(key + WRITTEN, key < stop ? stop : seen);
            if (delta) b->s1 = mild(w, key + 1, b->s1);
        } else b->t1 = least(least(t + WRITTEN, last), grows ? s->growing : last);
        t = b->t1, key = b->s1;
    }
}

/* The number of a block's segment. With the first queries one begins: gradients of keys before need no state. */
static int64_t segment_of(const Block *b) { return (b->t0 + b->s0) / SEGMENT + (b->t1 > 0); }

/* The place of the state before a block's segment among those that are saved. */
static int64_t place_of(const Work *w, const Block *b) { return segment_of(b) - segment_of(w->blocks) - 1; }

/* Sets what is known of the states before and after a block. A text of a few tokens is one block, and would spend most
 * of its time on filling a state and storing it. */
static void look(Work *w, const Block *b) {
    const Tensor *after = w->direction > 0 ? &w->s->last : &w->s->to_last;
    w->empty = b == w->blocks && !w->s->first.numbers;
    w->unread = b + 1 == w->blocks + w->count && !after->numbers;
    w->wanted = b > w->blocks || w->s->to_first.numbers;
}

/* How many of the block's keys its query number i sees. */
static int64_t seen_by(const Work *w, int64_t i) {
    return least(w->k.count, w->lead + (i / w->s->unit + 1) * w->s->gain);
}

/* The delta rule: with b the strengths and c the cumulated decays, keys write, instead of their values v,
 *
 *     u_i = b_i (v_i - e^c_i k_i S - sum_{j < i} A_ij u_j),    A_ij = (e^c_i k_i) . (e^-c_j k_j).
 *
 * S, the state that the block reads, is known, so that this is a triangular system, solved from the first key on, STRIP
 * keys at a time. `rest` is the sum in brackets, `reading` is -e^c k, and `system` is -A below its diagonal. */
static void solve(Work *w, const REAL *state) {
    const int64_t dim = w->dim, values = w->values, count = w->k.count, width = w->k.width;
    const REAL *strength = at(w, &w->s->strength, w->k.start);
    for (int64_t i = 0; i < count * w->gates; i++) w->rising[i] = -1 / w->k.factors[i];
    scale_rows(w, count, w->rising, w->k.x, w->reading);
    copy(w->v, count * values, w->rest, count * values);
    if (!w->empty) product(count, values, dim, w->reading, dim, 1, state, w->rest, values, 1);
    for (int64_t from = 0; from < count; from += STRIP) {
        const int64_t to = least(from + STRIP, count);
        REAL *system = w->system + from * width;
        product(to - from, padded(to), w->s->dim, w->reading + from * dim, dim, 1, w->k_columns, system, width, 0);
        product(to - from, values, from, system, width, 1, w->v, w->rest + from * values, values, 1);
        for (int64_t i = from; i < to; i++) {
            REAL *row = w->system + i * width, *rest = w->rest + i * values;
            product(1, values, i - from, row + from, 0, 1, w->v + from * values, rest, values, 1);
            scale(rest, strength[i], values, w->v + i * values);
            clear(row + i, width - i);
        }
    }
}

/* The gradients through `solve`, given those of what keys write, in `to_v`, which become those of values. Those of keys
 * that others read are added to theirs, those of keys that read are set in `to_reading`. */
static void solve_back(Work *w) {
    const int64_t dim = w->dim, values = w->values, count = w->k.count, width = w->k.width;
    const REAL *strength = at(w, &w->s->strength, w->k.start);
    REAL *to_strength = at(w, &w->s->to_strength, w->k.start), *to_v = w->to_v;
    for (int64_t to = count, from; to > 0; to = from) { /* from the last key to the first, STRIP at a time */
        from = (to - 1) / STRIP * STRIP;
        product(to - from, values, count - to, w->system + to * width + from, 1, width, to_v + to * values,
                to_v + from * values, values, 1);
        for (int64_t i = to - 1; i >= from; i--) {
            REAL *row = to_v + i * values;
            product(1, values, to - 1 - i, w->system + (i + 1) * width + i, 0, width, row + values, row, values, 1);
            to_strength[i] = dot(row, w->rest + i * values, values);
            scale(row, strength[i], values, row);
        }
    }
    product(count, width, w->s->values, to_v, values, 1, w->v_columns, w->to_system, width, 0);
    for (int64_t i = 0; i < count; i++) clear(w->to_system + i * width + i, width - i);
    product(count, dim, w->empty ? 0 : w->s->values, to_v, values, 1, w->state_columns, w->to_reading, dim, 0);
    product(count, dim, count, w->to_system, width, 1, w->k.scored, w->to_reading, dim, 1);
    product(count, dim, count, w->to_system, 1, width, w->reading, w->k.to_x, dim, 1);
}

/* Cumulates the log-decays of the block's keys: `total` has a row before the first key and one after each. It is 0 at
 * what the first query sees, so that factors of queries never exceed 1, and a strong decay before takes no digits. */
static void cumulate(Work *w) {
    const int64_t gates = w->gates, count = w->k.count, origin = w->q.count ? seen_by(w, 0) : w->written;
    REAL *total = w->total, *decays = w->to_decay; /* not gradients yet */
    if (gates > 1) move(w, &w->k, &w->s->decay, w->s->gates, decays, 0);
    else memcpy(decays, at(w, &w->s->decay, w->k.start), count * sizeof(REAL));
    clear(total + origin * gates, gates);
    for (int64_t j = origin; j < count; j++)
        for (int64_t i = j * gates; i < (j + 1) * gates; i++) total[i + gates] = total[i] + decays[i];
    for (int64_t j = origin - 1; j >= 0; j--)
        for (int64_t i = j * gates; i < (j + 1) * gates; i++) total[i] = total[i + gates] - decays[i];
}

/* e^(sign x) */
static void powers(REAL sign, const REAL *restrict x, int64_t count, REAL *restrict out) {
    for (int64_t i = 0; i < count; i++) out[i] = exponential(sign * x[i]);
}

/* Multiplies queries by e^c and keys by e^-c, or their cosines and sines. */
static void fade(const Work *w, Side *x, REAL sign, const REAL *totals) {
    powers(sign, totals, x->count * w->gates, x->factors);
    for (int64_t t = 0; w->s->turned && t < x->count; t++) x->cos[t] *= x->factors[t], x->sin[t] *= x->factors[t];
    if (!w->s->turned) scale_rows(w, x->count, x->factors, x->x, x->decayed);
}

/* Multiplies a state, or a gradient, by e^(sign total). */
static void fade_state(const Work *w, const REAL *total, REAL sign, REAL *state) {
    const int64_t numbers = w->gates > 1 ? w->values : w->size;
    powers(sign, total, w->gates, w->by_gates);
    for (int64_t g = 0; g < w->gates; g++, state += numbers) scale(state, w->by_gates[g], numbers, state);
}

/* Loads the block's tokens and maps them. `state` becomes from that before the block what the block reads. */
static void load_block(Work *w, const Block *b, REAL *state, int backward) {
    const Scan *s = w->s;
    Side *q = &w->q, *k = &w->k;
    load_tokens(w, q, b->t0, b->t1);
    load_tokens(w, k, b->s0, b->s1);
    move(w, k, &s->v, s->values, w->v, 0);
    w->lead = b->t0 || b->s0 ? 0 : s->shared;
    w->written = least(k->count, s->ahead ? s->gain - s->ahead : k->count);
    if (w->fades) {
        cumulate(w);
        for (int64_t i = 0; i < q->count; i++)
            memcpy(w->seen + i * w->gates, w->total + seen_by(w, i) * w->gates, w->gates * sizeof(REAL));
        fade(w, q, 1, w->seen), fade(w, k, -1, w->total + w->gates);
        fade_state(w, w->total, -1, state);
    }
    clear(k->cos + k->count, k->width - k->count), clear(k->sin + k->count, k->width - k->count);
    expand(w, q, q->count);
    expand(w, k, w->written);
    if (!k->count || !(q->count || s->strength.numbers)) return;
    to_columns(k->scored, k->count, w->dim, w->k_columns);
    if (s->strength.numbers) solve(w, state);
    if (backward) to_columns(w->v, k->count, w->values, w->v_columns);
}

/* The factor of query i and keys from j on. */
static inline vec factor(const Work *w, int64_t i, int64_t j) {
    return w->q.cos[i] * AT(w->k.cos + j) + w->q.sin[i] * AT(w->k.sin + j);
}

/* Sets numbers of `rows` queries from number i on to 0 where a query does not see a key. */
static void hide(const Work *w, int64_t i, int64_t rows, REAL *scores, int64_t seen) {
    for (int64_t r = 0; r < rows; r++) clear(scores + r * w->k.width + seen_by(w, i + r), seen - seen_by(w, i + r));
}

/* Scores of `rows` queries from number i on with the first keys of the block; how many, padded to vectors. */
static int64_t score(const Work *w, int64_t i, int64_t rows) {
    const int64_t dim = w->dim, seen = padded(seen_by(w, i + rows - 1));
    product(rows, seen, w->s->dim, w->q.scored + i * dim, dim, 1, w->k_columns, w->scores, w->k.width, 0);
    hide(w, i, rows, w->scores, seen);
    return seen;
}

/* --------------------------------------------------------------------------------------------------------- forward */

/* Stores what the block's queries read of its keys and of the state. */
static void read_block(Work *w) {
    const Scan *s = w->s;
    const int64_t features = w->features, values = w->values, width = w->k.width, count = w->q.count;
    const REAL *norm = w->state + features * values, *x = w->q.features, floor = s->floor;
    REAL *norms = at(w, &s->normalizer, w->q.start);
    product(count, values, w->empty ? 0 : features, x, features, 1, w->state, w->sums, values, 0);
    for (int64_t i = 0; i < count; i += STRIP) {
        const int64_t rows = least(STRIP, count - i), seen = score(w, i, rows);
        for (int64_t r = 0; r < rows; r++) {
            vec sum = {0};
            for (int64_t j = 0; j < seen; j += LANES) {
                vec *scores = &AT(w->scores + r * width + j);
                if (w->s->turned) *scores *= factor(w, i + r, j);
                sum += *scores;
            }
            if (s->normalizes) norms[i + r] = dot(x + (i + r) * features, norm, features) + (seen ? total_of(sum) : 0);
        }
        product(rows, values, least(seen, w->k.count), w->scores, width, 1, w->v, w->sums + i * values, values, 1);
    }
    for (int64_t i = 0; s->normalizes && i < count; i++)
        scale(w->sums + i * values, 1 / (norms[i] < floor ? floor : norms[i]), values, w->sums + i * values);
    move(w, &w->q, &s->out, s->values, w->sums, 1);
}

/* Makes of the state that the block read that after it: S + K^T V, decayed. */
static void write_block(const Work *w, REAL *state) {
    if (!w->k.count) return;
    add_to_state(w, w->k.features, w->written, w->v, w->ones, state);
    if (w->fades) fade_state(w, w->total + w->written * w->gates, 1, state);
}

static void forward(Work *w) {
    const Scan *s = w->s;
    move_state(w, &s->first, 0, w->state, 0);
    for (int64_t n = 0; n < w->count; n++) {
        const Block *b = w->blocks + n;
        if (s->states.numbers && n && segment_of(b) != segment_of(b - 1))
            move_state(w, &s->states, place_of(w, b), w->state, 1);
        look(w, b);
        load_block(w, b, w->state, 0);
        if (w->q.count) read_block(w);
        if (!w->unread) write_block(w, w->state);
    }
    move_state(w, &s->last, 0, w->state, 1);
}

/* -------------------------------------------------------------------------------------------------------- backward */

/* Gradients that come from the pairs of queries and keys in the block. */
static void pairs_back(Work *w) {
    const Side *q = &w->q, *k = &w->k;
    const int64_t dim = w->dim, values = w->values, width = k->width;
    for (int64_t i = 0; i < q->count; i += STRIP) {
        const int64_t rows = least(STRIP, q->count - i), seen = score(w, i, rows), count = least(seen, k->count);
        const REAL *to_sums = w->to_sums + i * values;
        product(rows, seen, w->s->values, to_sums, values, 1, w->v_columns, w->to_scores, width, 0);
        if (w->s->normalizes) product(rows, seen, 1, w->to_norms + i, 1, 0, w->ones, w->to_scores, width, 1);
        hide(w, i, rows, w->to_scores, seen);
        for (int64_t r = 0; w->s->turned && r < rows; r++) {
            const REAL cos = q->cos[i + r], sin = q->sin[i + r];
            vec to_angle = {0};
            for (int64_t j = 0; j < seen; j += LANES) {
                vec *scores = &AT(w->scores + r * width + j), *to_scores = &AT(w->to_scores + r * width + j);
                const vec weight = factor(w, i + r, j), turn = sin * AT(k->cos + j) - cos * AT(k->sin + j);
                AT(k->to_angles + j) += *scores * *to_scores * turn;
                to_angle -= *scores * *to_scores * turn;
                *scores *= weight, *to_scores *= weight;
            }
            q->to_angles[i + r] += total_of(to_angle);
        }
        product(count, values, rows, w->scores, 1, width, to_sums, w->to_v, values, 1);
        product(count, dim, rows, w->to_scores, 1, width, q->scored + i * dim, k->to_x, dim, 1);
        product(rows, dim, count, w->to_scores, width, 1, k->scored, q->to_x + i * dim, dim, 1);
    }
}

/* Adds products of numbers to the gradient of a log-decay, or each to that of its feature. */
static void add_products(const Work *w, REAL sign, const REAL *a, const REAL *b, int64_t count, REAL *out) {
    if (w->gates == 1) *out += sign * dot(a, b, count);
    for (int64_t i = 0; w->gates > 1 && i < count; i += LANES) AT(out + i) += sign * AT(a + i) * AT(b + i);
}

/* Gradients of the block's log-decays, whose factors of scores are e^(total seen by the query - total of the key), and
 * the state's gradient before they reach it.
 *
 * A score with gradient g adds g * score to the gradient of the former total and subtracts it from that of the latter:
 * summed over scores, a query's dot product with its gradient, and a key's. What is written keeps the factor of the
 * decays after it. Sums that cannot cancel are summed from the other end. */
static void decays_back(Work *w, const REAL *state, REAL *back, int64_t read) {
    const Side *q = &w->q, *k = &w->k;
    const int64_t dim = w->dim, features = w->features, gates = w->gates, numbers = gates > 1 ? w->values : w->size;
    REAL *out = w->to_decay, *sum = w->by_gates;
    clear(out, k->count * gates);
    for (int64_t j = 0; j < k->count; j++) {
        add_products(w, -1, k->scored + j * dim, k->to_x + j * dim, dim, out + j * gates);
        if (!w->s->strength.numbers) continue;
        add_products(w, 1, w->reading + j * dim, w->to_reading + j * dim, dim, out + j * gates);
    }
    for (int64_t i = 0; i < q->count; i++)
        add_products(w, 1, q->scored + i * dim, q->to_x + i * dim, dim, out + (seen_by(w, i) - 1) * gates);
    for (int64_t j = k->count - 2; j >= 0; j--) add(out + (j + 1) * gates, gates, out + j * gates);
    for (int64_t g = 0; read && g < gates; g++) sum[g] = dot(state + g * numbers, back + g * numbers, numbers);
    for (int64_t j = 0; j < read; j++) {
        add(sum, gates, out + j * gates);
        add_products(w, 1, k->features + j * features, k->to_features + j * features, features, sum);
    }
    for (int64_t g = 0; w->empty && g < gates; g++) out[g] *= 0; /* the first decay reaches nothing; NaN stays */
    if (gates > 1) move(w, k, &w->s->to_decay, w->s->gates, out, 1);
    else memcpy(at(w, &w->s->to_decay, k->start), out, k->count * sizeof(REAL));
}

/* Gradients of the block's queries, keys and values, given the state before it and the gradient of the state after it,
 * which becomes the gradient of the state before. */
static void block_back(Work *w, const Block *b, REAL *state, REAL *back) {
    const Scan *s = w->s;
    const int64_t dim = w->dim, values = w->values, features = w->features, numbers = features * values;
    const int delta = s->strength.numbers != NULL;
    const REAL floor = s->floor, *norms = at(w, &s->normalizer, b->t0);
    Side *q = &w->q, *k = &w->k;
    look(w, b);
    load_block(w, b, state, 1);
    clear(q->to_x, q->count * dim), clear(q->to_angles, q->width);
    clear(k->to_x, k->count * dim), clear(k->to_angles, k->width), clear(w->to_v, k->count * values);
    if (!w->empty && (q->count || delta)) transpose(state, features, values, w->state_columns);
    move(w, q, &s->to_out, s->values, w->to_sums, 0);
    if (s->normalizes) move(w, q, &s->out, s->values, w->sums, 0);
    for (int64_t i = 0; s->normalizes && i < q->count; i++) { /* outputs are sums / normalizers */
        REAL *to_sums = w->to_sums + i * values;
        scale(to_sums, 1 / (norms[i] < floor ? floor : norms[i]), values, to_sums);
        w->to_norms[i] = norms[i] < floor ? 0 : -dot(to_sums, w->sums + i * values, values);
    }
    if (q->count && !w->empty) {
        features_back(w, q->count, w->to_sums, w->to_norms, w->state_columns, state + numbers, q->to_features);
        expand_back(w, q, q->count);
    }
    if (w->fades && !w->unread) fade_state(w, w->total + w->written * w->gates, 1, back);
    if (k->count) {
        const int64_t read = w->unread ? 0 : w->written; /* keys, in the state after the block */
        product(read, values, features, k->features, features, 1, back, w->to_v, values, 1);
        if (q->count) pairs_back(w);
        if (delta) solve_back(w);
        if (read) transpose(back, features, values, w->back_columns);
        features_back(w, read, w->v, w->ones, w->back_columns, back + numbers, k->to_features);
        if (w->fades) decays_back(w, state, back, read);
        if (delta && w->wanted) product(dim, values, k->count, w->reading, 1, dim, w->to_v, back, values, 1);
        expand_back(w, k, read);
        if (w->fades && !s->turned) scale_rows(w, k->count, k->factors, k->to_x, k->to_x);
        if (delta) {
            scale_rows(w, k->count, w->rising, w->to_reading, w->to_reading);
            add(w->to_reading, k->count * dim, k->to_x);
        }
        store_gradients(w, k);
        move(w, k, &s->to_v, s->values, w->to_v, 1);
    }
    if (q->count) {
        if (w->wanted) add_to_state(w, q->features, q->count, w->to_sums, w->to_norms, back);
        if (w->fades && !s->turned) scale_rows(w, q->count, q->factors, q->to_x, q->to_x);
        store_gradients(w, q);
    }
    if (w->fades && w->wanted) fade_state(w, w->total, -1, back);
}

/* From the last segment to the first: the states before its blocks are computed again from the saved one, then come the
 * gradients of its blocks, from the last to the first. 1 if there is not enough memory. */
static int backward(Work *w) {
    const int lasting = !w->fades && !w->s->strength.numbers;
    move_state(w, &w->s->to_last, 0, w->state_back, 0);
    for (const Block *stop = w->blocks + w->count; stop > w->blocks;) {
        const Block *begin = stop - 1, *needed = stop - 1;
        while (begin > w->blocks && segment_of(begin - 1) == segment_of(begin)) begin--;
        while (needed > begin && lasting && needed->t0 == needed->t1) needed--; /* keys that are added need no state */
        if (w->room <= needed - begin) {
            free(w->states);
            w->states = NULL, w->room = needed - begin + 1;
            if (posix_memalign((void **)&w->states, 64, w->room * w->size * sizeof(REAL))) return 1;
        }
        REAL *state = w->states;
        if (begin > w->blocks) move_state(w, &w->s->states, place_of(w, begin), state, 0);
        else move_state(w, &w->s->first, 0, state, 0);
        for (const Block *b = begin; b < needed; b++, state += w->size) {
            copy(state, w->size, state + w->size, w->size);
            look(w, b);
            load_block(w, &(Block){b->t0, b->t0, b->s0, b->s1}, state + w->size, 0);
            write_block(w, state + w->size);
        }
        for (; stop > begin; stop--)
            block_back(w, stop - 1, w->states + least(stop - 1 - begin, needed - begin) * w->size, w->state_back);
    }
    store_network(w, &w->q);
    store_network(w, &w->k);
    move_state(w, &w->s->to_first, 0, w->state_back, 1);
    return 0;
}

/* Computes some heads. */
static void *run(void *given) {
    Work *w = given;
    lay_out(w);
    w->failed = posix_memalign((void **)&w->arena, 64, w->used * sizeof(REAL));
    if (!w->failed) lay_out(w);
    for (int64_t item = w->first; !w->failed && item < w->stop; item++) {
        w->batch = item / w->s->heads, w->head = item % w->s->heads;
        w->k.keep = at(w, &w->s->keep, 0);
        load_network(w, &w->q);
        load_network(w, &w->k);
        cut(w);
        if (w->direction < 0) w->failed = backward(w);
        else forward(w);
    }
    free(w->states), free(w->arena);
    return NULL;
}

/* 0, or 1 if there is not enough memory. Heads are divided among threads; each is computed by one, so results do not
 * depend on their number. */
int JOINED(leapformer_scan, REAL)(const Scan *s, int backward) {
    const int64_t heads = s->batch * s->heads, count = heads ? least(s->threads, heads) : 1;
    const int64_t dim = padded(s->dim), values = padded(s->values), features = s->turned ? 2 * dim : dim;
    Work *works = malloc(count * sizeof *works);
    int64_t started = 0, failed = 0;
    if (!works) return 1;
    for (int64_t i = 0; i < count; i++)
        works[i] = (Work){.s = s, .first = heads * i / count, .stop = heads * (i + 1) / count,
                          .dim = dim, .values = values, .features = features, .size = features * (values + 1),
                          .gates = s->gates > 1 ? dim : 1, .fades = s->decay.numbers != NULL,
                          .direction = backward ? -1 : 1,
                          .q = {.given = &s->q, .most = s->query_scale}, .k = {.given = &s->k, .most = 1}};
    while (started < count - 1 && !pthread_create(&works[started].thread, NULL, run, &works[started])) started++;
    for (int64_t i = started; i < count; i++) run(&works[i]);
    for (int64_t i = 0; i < started; i++) pthread_join(works[i].thread, NULL);
    for (int64_t i = 0; i < count; i++) failed |= works[i].failed;
    free(works);
    return failed != 0;
}
