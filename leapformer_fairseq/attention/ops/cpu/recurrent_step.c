/* One decoding step of a recurrence over all rows and heads: map, forget, write, read, scale to unit RMS, gate.
 *
 * Computes what `write` and `read` of a NormedMechanism compute; ../../kernels.py describes the options. All tensors
 * are float32 and contiguous.
 *
 *   projected  (rows, stride) queries and, with `update`, keys and values; logits at the columns given in
 *              `RecurrentSizes`; heads concatenated
 *   rates      (heads)
 *   state      (rows / shared, heads, dim, values)
 *   out        (rows, heads, values)
 */
#include <math.h>
#include <stdint.h>

#define MAX_DIM 1024

typedef struct {
    int32_t rows, heads, dim, values, shared, update;
    int32_t features;  /* 0: q and k; 1: silu(q) and silu(k) at length one; 2: silu(q), and for k the share that is
                          forgotten; 3: q and k at length one */
    int32_t gate, strength, output;  /* first columns of their logits in a projected row; 0: none */
    int32_t gates;     /* gate logits per head: 1 or `dim` */
    int32_t swish;     /* the output gate is x sigmoid(x), not sigmoid(x) */
    float scale;       /* factor of queries */
    float floor;       /* the least share of the state that is kept */
    float most;        /* the highest strength */
} RecurrentSizes;

static const float SMALLEST_SQUARE = 1e-5f, SHORTEST = 1e-6f; // as in base.py and delta.py

static float sigmoid(float y) { return 1.0f / (1.0f + expf(-y)); }

static float softplus(float y) { return y > 20 ? y : log1pf(expf(y)); }

static float sum_of_squares(const float *x, int count) {
    float total = 0;
    for (int i = 0; i < count; i++) total += x[i] * x[i];
    return total;
}

static void silu(const float *restrict x, float *restrict out, int count) {
    for (int i = 0; i < count; i++) out[i] = x[i] * sigmoid(x[i]);
}

static void scale_by(float *x, float factor, int count) {
    for (int i = 0; i < count; i++) x[i] *= factor;
}

/* Features of a query, or of a key (not with features 2, where `forget` computes them). */
static void map(const float *x, float *out, const RecurrentSizes *s) {
    const int count = s->dim;
    if (s->features == 1 || s->features == 2)
        silu(x, out, count);
    else
        for (int i = 0; i < count; i++) out[i] = x[i];
    if (s->features == 0 || s->features == 2) return;
    scale_by(out, 1 / sqrtf(sum_of_squares(out, count) + SHORTEST * SHORTEST), count);
}

/* The shares of each feature that are kept and forgotten. */
static void forget(const float *logits, float rate, float *restrict kept, float *restrict forgotten,
                   const RecurrentSizes *s) {
    const int different = logits ? s->gates : 1;
    for (int i = 0; i < different; i++) {
        forgotten[i] = -(1 - s->floor) * expm1f(-rate * (logits ? softplus(logits[i]) : 1));
        kept[i] = 1 - forgotten[i];
    }
    for (int i = different; i < s->dim; i++) kept[i] = kept[0], forgotten[i] = forgotten[0];
}

/* The delta rule: `written` becomes strength (v - k S), where S is the state after its decay. */
static void correct(const float *restrict k, const float *restrict v, const float *restrict kept, float strength,
                    const float *restrict state, float *restrict written, const RecurrentSizes *s) {
    const int values = s->values;
    for (int j = 0; j < values; j++) written[j] = v[j];
    for (int i = 0; i < s->dim; i++, state += values) {
        const float weight = k[i] * kept[i];
        for (int j = 0; j < values; j++) written[j] -= weight * state[j];
    }
    scale_by(written, strength, values);
}

static void write_and_read(const float *restrict q, const float *restrict k, const float *restrict written,
                           const float *restrict kept, float *restrict state, float *restrict out,
                           const RecurrentSizes *s) {
    const int values = s->values;
    for (int j = 0; j < values; j++) out[j] = 0;
    for (int i = 0; i < s->dim; i++, state += values) {
        const float query = q[i], key = k[i], share = kept[i];
        for (int j = 0; j < values; j++) {
            const float now = share * state[j] + key * written[j];
            state[j] = now;
            out[j] += query * now;
        }
    }
}

static void read(const float *restrict q, const float *restrict state, float *restrict out, const RecurrentSizes *s) {
    const int values = s->values;
    for (int j = 0; j < values; j++) out[j] = 0;
    for (int i = 0; i < s->dim; i++, state += values)
        for (int j = 0; j < values; j++) out[j] += q[i] * state[j];
}

void leapformer_recurrent_step(const RecurrentSizes *s, const float *projected, int64_t stride, const float *rates,
                               float *state, float *out) {
    const int dim = s->dim, values = s->values;
    float q[MAX_DIM], k[MAX_DIM], kept[MAX_DIM], forgotten[MAX_DIM], written[MAX_DIM];
    for (int row = 0; row < s->rows; row++) {
        for (int head = 0; head < s->heads; head++, out += values) {
            const float *rows = projected + row * stride, *raw_q = rows + head * dim, *raw_k = raw_q + s->heads * dim;
            const float *v = rows + 2 * s->heads * dim + head * values;
            float *kv = state + ((int64_t)(row / s->shared) * s->heads + head) * dim * values;
            map(raw_q, q, s);
            scale_by(q, s->scale, dim);
            if (s->update) {
                forget(s->gate ? rows + s->gate + head * s->gates : 0, rates[head], kept, forgotten, s);
                if (s->features == 1 || s->features == 3) map(raw_k, k, s);
                const float *key = s->features == 0 ? raw_k : s->features == 2 ? forgotten : k;
                if (s->strength) {
                    correct(key, v, kept, s->most * sigmoid(rows[s->strength + head]), kv, written, s);
                    v = written;
                }
                write_and_read(q, key, v, kept, kv, out, s);
            } else {
                read(q, kv, out, s);
            }
            scale_by(out, 1 / sqrtf(sum_of_squares(out, values) / values + SMALLEST_SQUARE), values);
            if (s->output) {
                const float *gate = rows + s->output + head * values;
                for (int j = 0; j < values; j++) out[j] *= (s->swish ? gate[j] : 1) * sigmoid(gate[j]);
            }
        }
    }
}
