/* slurmstepd: the environment of batch scripts and tasks, and the record of tasks' exits. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>

#include "contexts.h"
#include "exits.h"
#include "options.h"
#include "task_env.h"

/* Not in all headers. */
#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif
#ifndef PR_SET_PTRACER_ANY
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

/* The step id of a batch script, and the first id of Slurm's own steps (batch, extern, interactive). */
static const uint32_t BATCH_STEP = 0xfffffffbU, FIRST_STEP_OF_SLURM = 0xfffffff0U;

static struct request request;

void stepd_post_opt(spank_t sp)
{
	uint32_t number = 0;

	request = options_effective(sp, lookup_in_job);
	if (!is_watched(&request) && !options_any_typed())
		return;
	options_log_site_mistakes();
	if (spank_get_item(sp, S_JOB_STEPID, &number) != ESPANK_SUCCESS)
		return;
	if (number < FIRST_STEP_OF_SLURM && is_watched(&request) && !is_set(sp, "SROBUST_WATCH"))
		exits_open(sp, options_site()->exits);
	if (number != BATCH_STEP)
		return;
	/* The script's environment passes sbatch's options to its sruns, also with --export=NONE. Slurm passes them,
	 * too, in variables that would override what the script itself sets in ours: remove those. */
	for (enum field field = FIELD_MODE; field < FIELDS; field++) {
		spank_unsetenv(sp, SLURM_VARIABLES[field]);
		if (is_jobs_choice(&request, field) &&
		    spank_setenv(sp, FIELD_VARIABLES[field], value_text(&request, field), 1) != ESPANK_SUCCESS)
			slurm_error("robust: batch: %s could not be set", FIELD_VARIABLES[field]);
	}
}

void task_before_exec(spank_t sp)
{
	uint32_t number = 0;

	if (!is_watched(&request) || is_set(sp, "SROBUST_WATCH") ||
	    (spank_get_item(sp, S_JOB_STEPID, &number) == ESPANK_SUCCESS && number >= FIRST_STEP_OF_SLURM))
		return;
	/* It survives exec, and holds for this process alone. Without Yama (EINVAL) everything is allowed. */
	if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) != 0 && errno != EINVAL)
		slurm_error("robust: task: tracing could not be allowed: %s", strerror(errno));
	if (exits_path()[0] != '\0' && spank_setenv(sp, "SROBUST_EXITS", exits_path(), 1) != ESPANK_SUCCESS)
		slurm_debug("robust: task: SROBUST_EXITS could not be set");
	task_env_give(sp, options_site());
}

void stepd_task_ended(spank_t sp)
{
	exits_note(sp);
}

void stepd_over(void)
{
	exits_close();
}
