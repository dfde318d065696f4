/* One decoding step of a linear mechanism over all rows and heads: map, forget, add to the state, read it, normalise.
 *
 * Computes what `LinearStep` in ../linear.py computes in PyTorch; ../../kernels.py describes the options. Plain C
 * without PyTorch's headers, so it compiles in a second and works with every version. All tensors are float32 and
 * contiguous.
 *
 *   projected    (rows, stride) queries and, with `update`, keys, values [v, 1] and gates' logits, heads concatenated
 *   state        (rows / shared, heads, features, values)
 *   networks     proportion networks of queries and keys, packed by ../linear.py, or NULL
 *   proportions  (rows), or NULL if there are networks or no reweighting
 *   rotation     (pairs, 2) cosine and sine, or NULL
 *   out          (rows, heads, values - 1)
 */
#include <math.h>
#include <stdint.h>

#define MAX_DIM 1024

static const float HALF_PI = 1.5707962512969971f; // rounded down, as by right_angle() in reweighting.py

typedef struct {
    int32_t rows, heads, dim, values, shared, update;
    int32_t activation;      /* 0 relu, 1 elu + 1 */
    int32_t reweighted;      /* features are [x cos, x sin] */
    int32_t hidden;          /* width of the proportion networks; 0: one linear layer */
    int32_t network_stride;  /* from one head's network to the next; 0: all heads share one */
    int32_t pairs;           /* leading pairs of dimensions that are rotated, except for the normalizer */
    int32_t raw;             /* the networks read vectors before their activation */
    int32_t gate;            /* first column of the gates' logits in a projected row, one per head; 0: no decay */
    float floor;
} Sizes;

static float relu(float y) { return y < 0 ? 0 : y; } /* NaN stays NaN */

static float sigmoid(float y) { return 1.0f / (1.0f + expf(-y)); }

/* Packed as weight (dim, hidden), bias (hidden), weight (hidden), bias; or weight (dim), bias. */
static float proportion_of(const float *x, const float *network, int dim, int hidden) {
    if (!hidden) {
        float y = network[dim];
        for (int i = 0; i < dim; i++) y += x[i] * network[i];
        return sigmoid(y);
    }
    float layer[MAX_DIM];
    const float *bias = network + dim * hidden, *last = bias + hidden;
    for (int o = 0; o < hidden; o++) layer[o] = bias[o];
    for (int i = 0; i < dim; i++)
        for (int o = 0; o < hidden; o++) layer[o] += x[i] * network[i * hidden + o];
    float y = last[hidden];
    for (int o = 0; o < hidden; o++) y += relu(layer[o]) * last[o];
    return sigmoid(y);
}

static void activate(const float *x, float *out, int dim, int activation) {
    for (int i = 0; i < dim; i++) {
        out[i] = activation ? (x[i] > 0 ? x[i] + 1 : expf(x[i])) : relu(x[i]);
    }
}

static void rotate(const float *x, float *out, int dim, const float *rotation, int pairs) {
    for (int i = 0; i < pairs; i++) {
        const float even = x[2 * i], odd = x[2 * i + 1], cosine = rotation[2 * i], sine = rotation[2 * i + 1];
        out[2 * i] = even * cosine - odd * sine;
        out[2 * i + 1] = even * sine + odd * cosine;
    }
    for (int i = 2 * pairs; i < dim; i++) out[i] = x[i];
}

void leapformer_step(const Sizes *s, const float *projected, int64_t stride, float *state, const float *query_networks,
                     const float *key_networks, const float *proportions, const float *rotation, float *out) {
    const int dim = s->dim, values = s->values, last = values - 1, halves = s->reweighted ? 2 : 1;
    const int64_t state_size = (int64_t)halves * dim * values;
    float q[MAX_DIM], k[MAX_DIM], rotated_q[MAX_DIM], rotated_k[MAX_DIM], sums[MAX_DIM + 1];
    const float *value_q = rotation ? rotated_q : q, *value_k = rotation ? rotated_k : k;
    for (int row = 0; row < s->rows; row++) {
        for (int head = 0; head < s->heads; head++) {
            const float *rows = projected + row * stride;
            const float *v = rows + 2 * s->heads * dim + head * values;
            float *kv = state + ((int64_t)(row / s->shared) * s->heads + head) * state_size;
            float pq = proportions ? proportions[row] : 0, pk = pq;
            const float *raw_q = rows + head * dim, *raw_k = raw_q + s->heads * dim;
            activate(raw_q, q, dim, s->activation);
            if (s->update) activate(raw_k, k, dim, s->activation);
            if (query_networks) {
                const int64_t of_head = head * s->network_stride;
                pq = proportion_of(s->raw ? raw_q : q, query_networks + of_head, dim, s->hidden);
                if (s->update) pk = proportion_of(s->raw ? raw_k : k, key_networks + of_head, dim, s->hidden);
            }
            if (rotation) {
                rotate(q, rotated_q, dim, rotation, s->pairs);
                if (s->update) rotate(k, rotated_k, dim, rotation, s->pairs);
            }
            if (s->gate) {
                const float kept = sigmoid(rows[s->gate + head]);
                for (int64_t i = 0; i < state_size; i++) kv[i] *= kept;
            }
            for (int j = 0; j < values; j++) sums[j] = 0;
            for (int half = 0; half < halves; half++) {
                float wq = 1, wk = 1;
                if (s->reweighted) {
                    wq = half ? sinf(HALF_PI * pq) : cosf(HALF_PI * pq);
                    wk = half ? sinf(HALF_PI * pk) : cosf(HALF_PI * pk);
                }
                for (int i = 0; i < dim; i++, kv += values) {
                    if (s->update) {
                        const float weight = value_k[i] * wk;
                        if (weight != 0)
                            for (int j = 0; j < last; j++) kv[j] += weight * v[j];
                        kv[last] += k[i] * wk;
                    }
                    const float weight = value_q[i] * wq;
                    if (weight != 0)
                        for (int j = 0; j < last; j++) sums[j] += weight * kv[j];
                    sums[last] += q[i] * wq * kv[last];
                }
            }
            const float total = sums[last], scale = 1 / (total < s->floor ? s->floor : total);
            float *y = out + ((int64_t)row * s->heads + head) * last;
            for (int j = 0; j < last; j++) y[j] = sums[j] * scale;
        }
    }
}
