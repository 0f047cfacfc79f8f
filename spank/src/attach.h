/* Starts `srobust attach` for a step, detached from srun. */
#ifndef SROBUST_ATTACH_H
#define SROBUST_ATTACH_H

#include <stdint.h>

#include "values.h"

/* Start it without waiting for it. Failures are logged. */
void attach_start(const char *command, uint32_t job, uint32_t step, const struct request *request);

#endif
