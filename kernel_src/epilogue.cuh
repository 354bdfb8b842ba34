/* epilogue.cuh - y = act(alpha * conv + bias + beta * z), in float32. Stamped: CJ_ALPHA, CJ_BETA, CJ_HAS_Z, CJ_ACTIVATION
 * (number of convjit_activation), CJ_ACTIVATION_A, CJ_ACTIVATION_B. */

__device__ __forceinline__ float cj_activate(float v) {
#if CJ_ACTIVATION == 0 /* none */
    return v;
#elif CJ_ACTIVATION == 1 /* relu; a NaN stays */
    return v < 0.0F ? 0.0F : v;
#elif CJ_ACTIVATION == 2 /* leaky relu */
    return v < 0.0F ? CJ_ACTIVATION_A * v : v;
#elif CJ_ACTIVATION == 3 /* silu */
    return v / (1.0F + expf(-v));
#elif CJ_ACTIVATION == 4 /* gelu; erfc(-u) = 1 + erf(u) keeps its digits where v is negative */
    return 0.5F * v * erfcf(-0.70710678118654752F * v);
#elif CJ_ACTIVATION == 5 /* sigmoid */
    return 1.0F / (1.0F + expf(-v));
#elif CJ_ACTIVATION == 6
    return tanhf(v);
#elif CJ_ACTIVATION == 7 /* hardswish */
    return v * fminf(fmaxf(v + 3.0F, 0.0F), 6.0F) / 6.0F;
#elif CJ_ACTIVATION == 8 /* clamp; a NaN stays */
    return v < CJ_ACTIVATION_A ? CJ_ACTIVATION_A : v > CJ_ACTIVATION_B ? CJ_ACTIVATION_B : v;
#else
#error "CJ_ACTIVATION: no such activation"
#endif
}

/* alpha * conv + bias */
__device__ __forceinline__ float cj_linear(float conv, float bias) {
    return fmaf(CJ_ALPHA, conv, bias);
}

/* y from that and z, which is not looked at without CJ_HAS_Z. */
__device__ __forceinline__ float cj_finish(float linear, float z) {
#if CJ_HAS_Z
    return cj_activate(fmaf(CJ_BETA, z, linear));
#else
    (void)z;
    return cj_activate(linear);
#endif
}
