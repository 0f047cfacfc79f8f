/* slurmstepd: what a batch script and the tasks of a step are given. */
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

/* As Slurm numbers the step of a batch script; from the other on they are steps of Slurm's own (extern, interactive). */
static const uint32_t BATCH_STEP = 0xfffffffbU, FIRST_OF_SLURMS = 0xfffffff0U;

static struct request request;

void stepd_post_opt(spank_t sp)
{
	uint32_t number = 0;

	request = options_effective(sp, lookup_in_job);
	if (!is_watched(&request) && !options_any_typed())
		return;
	options_tell_site_mistakes();
	if (spank_get_item(sp, S_JOB_STEPID, &number) != ESPANK_SUCCESS)
		return;
	if (number < FIRST_OF_SLURMS && is_watched(&request) && !is_set(sp, "SROBUST_WATCH"))
		exits_open(sp, options_site()->exits);
	if (number != BATCH_STEP)
		return;
	/* The script's environment carries sbatch's options to its sruns, also with --export=NONE. Slurm hands them on
	 * too, in variables that would come before what the script itself sets in ours: those go. */
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
	    (spank_get_item(sp, S_JOB_STEPID, &number) == ESPANK_SUCCESS && number >= FIRST_OF_SLURMS))
		return;
	/* Kept over exec, and by this process alone. Without Yama there is nothing to allow. */
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
