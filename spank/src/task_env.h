/* Variables for the tasks of a watched step. What the user has set is never overridden. */
#ifndef SROBUST_TASK_ENV_H
#define SROBUST_TASK_ENV_H

#include <slurm/spank.h>
#include <stdbool.h>

#include "site.h"

/* Whether the job's or task's environment has this variable. */
bool is_set(spank_t sp, const char *name);

/* Set them as the site wants: our sitecustomize, PyTorch's flight recorder, GPU core dumps. */
void task_env_give(spank_t sp, const struct site *site);

#endif
