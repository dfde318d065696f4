/* One decoding step over a memory of slots, for all rows and heads: write a row, then read with a softmax over slots.
 *
 * Computes what `MemoryStep` in ../slots.py computes in PyTorch; ../../kernels.py describes the options. All tensors
 * are float32, and contiguous except for the strides given.
 *
 *   projected  (rows, stride) queries and, if there is a control, keys and values, heads concatenated
 *   control    what each row writes into the slots, (rows, heads, slots), with strides that may be 0; NULL: only read
 *   keys       (rows / shared, heads, dim, slots)
 *   values     (rows / shared, heads, slots, value_dim)
 *   mass       of each slot: (rows / shared, heads, slots) if `summed`, otherwise (rows / shared, slots)
 *   out        (rows, heads, value_dim)
 */
#include <float.h>
#include <math.h>
#include <stdint.h>

#define MAX_SLOTS 1024

typedef struct {
    int32_t rows, heads, dim, value_dim, slots, shared;
    int32_t key, value;  /* first columns of keys and values in a projected row */
    int32_t summed;      /* the mass is the sum of the control over rows, per head; otherwise given and not changed */
    int32_t normalized;  /* the sums in a slot are divided by its mass, or by `floor` if that is higher */
    int32_t masked;      /* slots without mass are excluded from the softmax */
    float floor, scale;
} SlotSizes;

/* Add the row's key to the sums of keys, then multiply these by the query. */
static void logits_of(const float *restrict q, const float *restrict k, const float *restrict control,
                      float *restrict keys, float *restrict logits, const SlotSizes *s) {
    const int slots = s->slots;
    for (int j = 0; j < slots; j++) logits[j] = 0;
    for (int i = 0; i < s->dim; i++, keys += slots) {
        const float query = q[i] * s->scale;
        if (control) {
            const float key = k[i];
            for (int j = 0; j < slots; j++) keys[j] += key * control[j];
        }
        for (int j = 0; j < slots; j++) logits[j] += query * keys[j];
    }
}

/* Replace the logits by the weights of the sums of values. */
static void softmax(float *restrict logits, const float *restrict mass, const SlotSizes *s) {
    float highest = -FLT_MAX, total = 0;
    for (int j = 0; j < s->slots; j++) {
        if (s->normalized) logits[j] /= mass[j] > s->floor ? mass[j] : s->floor;
        if (s->masked && mass[j] <= 0) logits[j] = -FLT_MAX;
        if (logits[j] > highest) highest = logits[j];
    }
    for (int j = 0; j < s->slots; j++) {
        logits[j] = expf(logits[j] - highest);
        total += logits[j];
    }
    for (int j = 0; j < s->slots; j++) {
        logits[j] /= total;
        if (s->normalized) logits[j] /= mass[j] > s->floor ? mass[j] : s->floor;
    }
}

/* Add the row's value to the sums of values, then compute their weighted sum. */
static void read_values(const float *restrict weights, const float *restrict v, const float *restrict control,
                        float *restrict values, float *restrict out, const SlotSizes *s) {
    const int dim = s->value_dim;
    for (int e = 0; e < dim; e++) out[e] = 0;
    for (int j = 0; j < s->slots; j++, values += dim) {
        if (control && control[j] != 0)
            for (int e = 0; e < dim; e++) values[e] += control[j] * v[e];
        for (int e = 0; e < dim; e++) out[e] += weights[j] * values[e];
    }
}

void leapformer_slot_step(const SlotSizes *s, const float *projected, int64_t stride, const float *control,
                          int64_t row_stride, int64_t head_stride, float *keys, float *values, float *mass, float *out) {
    float weights[MAX_SLOTS];
    for (int row = 0; row < s->rows; row++) {
        for (int head = 0; head < s->heads; head++) {
            const int64_t memory = (int64_t)(row / s->shared) * s->heads + head;
            const float *rows = projected + row * stride, *q = rows + head * s->dim;
            const float *k = rows + s->key + head * s->dim, *v = rows + s->value + head * s->value_dim;
            const float *written = control ? control + row * row_stride + head * head_stride : 0;
            float *total = mass + (s->summed ? memory : row / s->shared) * s->slots;
            if (written && s->summed)
                for (int j = 0; j < s->slots; j++) total[j] += written[j];
            logits_of(q, k, written, keys + memory * s->dim * s->slots, weights, s);
            softmax(weights, total, s);
            read_values(weights, v, written, values + memory * s->slots * s->value_dim,
                        out + ((int64_t)row * s->heads + head) * s->value_dim, s);
        }
    }
}
