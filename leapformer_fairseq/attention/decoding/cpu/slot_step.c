/* One decoding step over a memory of slots and all rows and heads: write a row into it, read it with a softmax.
 *
 * The same function as `MemoryStep` in ../slots.py, which says what the numbers mean. All tensors are float32 and
 * contiguous but for the strides given.
 *
 *   projected  (rows, stride) queries, and where there is a control keys and values, heads concatenated
 *   control    what each row writes into the slots, (rows, heads, slots) by strides that may be 0; or NULL: only read
 *   keys       (rows / shared, heads, dim, slots)
 *   values     (rows / shared, heads, slots, value_dim)
 *   mass       how much is in the slots: if `summed` (rows / shared, heads, slots), or else (rows / shared, slots)
 *   out        (rows, heads, value_dim)
 */
#include <float.h>
#include <math.h>
#include <stdint.h>

#define MAX_SLOTS 1024

typedef struct {
    int32_t rows, heads, dim, value_dim, slots, shared;
    int32_t key, value;  /* where in a projected row the keys and the values of the first head begin */
    int32_t summed;      /* the mass is the sum of the control, each head's own; or else it is given and stays */
    int32_t normalized;  /* the sums are divided by the mass in each slot, which is at least `floor` */
    int32_t masked;      /* slots without any mass are left out of the softmax */
    float floor, scale;
} SlotSizes;

/* Products of the query and the sums of keys, after the row's own key was added. */
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

/* The logits become the weights of the sums of values. */
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

/* The weighted sum of values, after the row's own was added. */
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
            const float *own = control ? control + row * row_stride + head * head_stride : 0;
            float *total = mass + (s->summed ? memory : row / s->shared) * s->slots;
            if (own && s->summed)
                for (int j = 0; j < s->slots; j++) total[j] += own[j];
            logits_of(q, k, own, keys + memory * s->dim * s->slots, weights, s);
            softmax(weights, total, s);
            read_values(weights, v, own, values + memory * s->slots * s->value_dim,
                        out + ((int64_t)row * s->heads + head) * s->value_dim, s);
        }
    }
}
