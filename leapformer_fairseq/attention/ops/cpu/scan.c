/* Linear attention over whole sequences, forward and backward: o_t = sum_{s < n(t)} (phi(q_t) . phi(k_s)) v_s, divided by
 * its normalizer, with a state S = sum_s phi(k_s) v_s^T that leads from block to block and decays on the way. With the
 * delta rule, what a key reads from the state is replaced (`solve` in scan_body.h).
 *
 * ../scan.py calls it; ../linear.py and ../recurrent.py compute the same in PyTorch. Plain C with vectors of GCC and clang, without
 * PyTorch's headers: it compiles in seconds and works with every version. scan_body.h is included once per precision.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a vector, half of its numbers in float and double, and rows and vectors of a product that registers hold. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define HALF_float 8
#define HALF_double 4
#define TILE_ROWS 8
#define TILE_VECTORS 2
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define HALF_float 4
#define HALF_double 2
#define TILE_ROWS 4
#define TILE_VECTORS 2
#else
#define VECTOR_BYTES 16
#define HALF_float 2
#define HALF_double 1
#define TILE_ROWS 4
#define TILE_VECTORS 4
#endif

#define STRIP 16          /* queries whose scores are computed together */
#define WRITTEN 64        /* keys that are written together where no query is between them */
#define SEGMENT 1024      /* tokens between two states that are saved for the backward pass */
#define SHORTEST 1e-6     /* vectors that are much shorter are not scaled to length one, as in ../../recurrent/delta.py */
#define LITTLE 40         /* largest exponent of decays, as in ops/recurrent.py */

/* Activations as in ../scan.py: max(x, 0), elu(x) + 1, and x sigmoid(x), scaled to length one. */
enum { NONE, RELU, ELU, DIRECTION };

/* As `Scan` in __init__.py. All strides are in numbers; the numbers of a token are contiguous. */
typedef struct {
    int64_t batch, heads, queries, keys;
    int64_t dim, values;      /* D of queries and keys, E of values */
    int64_t shared, growing;  /* keys that every query sees; queries that each see more than the one before */
    int64_t unit, gain;       /* of the growing queries, `unit` neighbours see `gain` keys more than those before */
    int64_t ahead;            /* of these keys, the last ones are not written to the state */
    int64_t block;            /* growing queries that are compared with their keys in pairs, a multiple of `unit`; 0 if
                                 `gain` is above WRITTEN and nothing is ahead */
    int64_t activation;       /* NONE, .. */
    int64_t turned;           /* features are [x cos, x sin] */
    int64_t hidden, per_head; /* hidden units of proportion networks; whether each head has its own */
    int64_t raw;              /* proportion networks read vectors before the activation */
    int64_t normalizes;       /* the state has a column for the normalizer, by which sums are divided */
    int64_t segments;         /* states that are saved of each head */
    int64_t threads;
    double floor;             /* of the normalizer */
    double query_scale;       /* of queries as directions */
    int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];             /* of batch entry, head, token */
    int64_t to_q_strides[3], to_k_strides[3], to_v_strides[3], to_out_strides[3]; /* of gradients */
    int64_t query_turns_strides[3], key_turns_strides[3];
    const void *q, *k, *v;
    const void *query_turns, *key_turns;     /* (.., T, 2), (.., S, 2) cosine and sine of each token; or NULL */
    const void *query_network, *key_network; /* what computes them instead, see `Network`; or NULL */
    const void *decay;                       /* (B, H, S) log-decays <= 0, or NULL */
    const void *strength;                    /* (B, H, S) of the delta rule, or NULL: values are added */
    const uint8_t *keep;                     /* (B, S), 0 at padding, or NULL */
    const void *first;                       /* (B, H, F, E + normalizes) state before the first key, or NULL: zeros */
    void *out, *normalizer;                  /* (B, H, T, E), (B, H, T) */
    void *last;                              /* the state after the last key */
    void *states;                            /* (B, H, segments, F, E + normalizes) for the backward pass, or NULL */
    const void *to_out, *to_last;            /* gradients; `to_last` may be NULL */
    void *to_q, *to_k, *to_v;
    void *to_query_network, *to_key_network; /* (B, H, numbers of a network), or NULL, as the next two */
    void *to_decay, *to_strength, *to_first;
} Scan;

/* Queries [t0, t1), which see the state and, of keys [s0, s1), the first ones; then these keys are
 * written. Without keys they only read, without queries keys are only written. */
typedef struct {
    int64_t t0, t1, s0, s1;
} Block;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Whether vectors before the activation are needed beside those after it. */
static int needs_raw(const Scan *s) { return s->raw || s->activation == DIRECTION; }

/* The most blocks that a head is cut into. */
static int64_t most_blocks(const Scan *s) {
    return (s->shared + s->keys + s->queries) / WRITTEN + 2 * (s->growing / s->unit) + s->queries / WRITTEN + 6;
}

/* The number of the segment in which a block lies. */
static int64_t segment_of(const Block *b) { return (b->t0 + b->s0) / SEGMENT; }

/* How many of a block's keys its query number i sees. */
static int64_t seen(const Scan *s, const Block *b, int64_t i) {
    return least(b->s1 - b->s0, (i / s->unit + 1) * s->gain);
}

#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define NAME(name) JOINED(name, REAL)

/* Places a, a + n, a + 1, a + 1 + n, .. for __builtin_shuffle: numbers of two vectors in turn. */
#define PAIRS_1(a, n) (a), (a) + (n)
#define PAIRS_2(a, n) PAIRS_1(a, n), PAIRS_1((a) + 1, n)
#define PAIRS_4(a, n) PAIRS_2(a, n), PAIRS_2((a) + 2, n)
#define PAIRS_8(a, n) PAIRS_4(a, n), PAIRS_4((a) + 4, n)

/* e^x with an error below 2 units in the last place, without branches, so that loops of it become vectors. */
static inline float exp_float(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    const union {
        float number;
        uint32_t bits;
    } shifted = {x * 1.44269504f + shift}; /* the last bits are the whole number's, also if it is negative */
    const float whole = shifted.number - shift;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    const union {
        uint32_t bits;
        float factor;
    } power = {(shifted.bits + 127) << 23};
    return y * power.factor;
}

static inline double exp_double(double x) { return exp(x); }

/* sin(pi / 2 * x) for x in [0, 1], never negative; cos(pi / 2 * x) is that of 1 - x. */
static inline float turn_float(float x) {
    const float a = x * 1.57079637f, b = a * a;
    float y = 1.60590438e-10f;
    y = y * b - 2.50521084e-8f;
    y = y * b + 2.75573192e-6f;
    y = y * b - 1.98412698e-4f;
    y = y * b + 8.33333333e-3f;
    y = y * b - 1.66666667e-1f;
    return y * b * a + a;
}

static inline double turn_double(double x) { return sin(x * 1.5707963267948966); }

#define REAL float
#define MASK int32_t
#define HALF HALF_float
#include "scan_body.h"
#undef REAL
#undef MASK
#undef HALF
#define REAL double
#define MASK int64_t
#define HALF HALF_double
#include "scan_body.h"

typedef struct {
    const Scan *scan;
    int64_t first, stop;
    int (*run)(const Scan *, int64_t, int64_t);
    int failed;
} Share;

static void *run_share(void *given) {
    Share *share = given;
    share->failed = share->run(share->scan, share->first, share->stop);
    return NULL;
}

/* Heads are divided among threads; each is computed by one, so results do not depend on their number. */
static int in_threads(const Scan *s, int (*run)(const Scan *, int64_t, int64_t)) {
    const int64_t heads = s->batch * s->heads, count = least(s->threads, heads);
    if (count <= 1) return run(s, 0, heads);
    Share *shares = malloc(count * sizeof *shares);
    pthread_t *threads = malloc(count * sizeof *threads);
    if (!shares || !threads) {
        free(shares);
        free(threads);
        return 1;
    }
    int64_t started = 0;
    int failed = 0;
    for (int64_t i = 0; i < count; i++) shares[i] = (Share){s, heads * i / count, heads * (i + 1) / count, run, 0};
    while (started < count - 1 && !pthread_create(&threads[started], NULL, run_share, &shares[started])) started++;
    for (int64_t i = started; i < count; i++) run_share(&shares[i]);
    for (int64_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    for (int64_t i = 0; i < count; i++) failed |= shares[i].failed;
    free(shares);
    free(threads);
    return failed;
}

/* 0, or 1 if there is not enough memory. */
int leapformer_scan(const Scan *s, int is_double, int backward) {
    if (backward) return in_threads(s, is_double ? backward_double : backward_float);
    return in_threads(s, is_double ? forward_double : forward_float);
}
