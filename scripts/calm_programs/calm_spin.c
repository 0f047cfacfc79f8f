/* Computes for some seconds; called with Python's lock held. */
#include <time.h>

double spin_seconds(double wanted) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double begun = now.tv_sec + now.tv_nsec / 1e9, sum = 0;
    do {
        for (int i = 1; i < 10000; i++) sum += 1.0 / i;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec + now.tv_nsec / 1e9 - begun < wanted);
    return sum;
}
