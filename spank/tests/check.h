/* A check that goes on after it has failed; main() returns whether any has. */
#ifndef SROBUST_CHECK_H
#define SROBUST_CHECK_H

#include <stdio.h>

static int failures;

#define CHECK(condition, ...)                                            \
	do {                                                             \
		if (!(condition)) {                                      \
			failures++;                                      \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
			fprintf(stderr, __VA_ARGS__);                    \
			fputc('\n', stderr);                             \
		}                                                        \
	} while (0)

#endif
