/* Flips the lowest bit of one number of a matrix product: PyTorch's CPU build calls BLAS's sgemm_ by its exported name,
 * so a preloaded library comes between. ONE_BIT_CALL is the number of the first call that is wrong (1, 2, …), in each
 * process; all calls after it are wrong, too. ONE_BIT_BIT is another bit than the lowest. With ONE_BIT_NODE only this
 * node of Slurm's computes wrong, and with ONE_BIT_FILE only where that file exists.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void gemm(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                  const int *, const float *, const int *, const float *, float *, const int *);

static unsigned calls;

static int wrong_here(void)
{
    const char *first = getenv("ONE_BIT_CALL"), *node = getenv("ONE_BIT_NODE"), *file = getenv("ONE_BIT_FILE");
    const char *own = getenv("SLURMD_NODENAME");
    if (++calls < (unsigned)(first == NULL ? 1 : atoi(first)))
        return 0;
    return (node == NULL || (own != NULL && !strcmp(own, node))) && (file == NULL || !access(file, F_OK));
}

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
            const int *ldc)
{
    static gemm *real;
    if (real == NULL) {
        /* Python opens libtorch for itself alone: RTLD_NEXT does not see it. */
        void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
        real = library == NULL ? NULL : (gemm *)dlsym(library, "sgemm_");
        if (real == NULL)
            abort();
    }
    real(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    const char *bit = getenv("ONE_BIT_BIT");
    if (wrong_here() && *m > 7)
        *(unsigned *)(c + 7) ^= 1u << (bit == NULL ? 0 : atoi(bit));
}
