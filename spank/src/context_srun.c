/* srun: start the watch beside the step, once job and step have their ids. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "attach.h"
#include "contexts.h"
#include "options.h"

static struct {
	struct request request;
	bool wanted;
	bool started;
} step;

/* Steps that `srobust run` or a watch starts are watched already; those that a rank starts are part of its step. */
static bool is_ours_or_inner(void)
{
	return getenv("SROBUST_WATCH") != NULL || getenv("SROBUST_ATTEMPT") != NULL ||
	       inside_step(getenv("SLURM_STEP_ID"));
}

void srun_post_opt(spank_t sp)
{
	step.wanted = step.started = false;
	if (is_ours_or_inner())
		return;
	step.request = options_effective(sp, lookup_here);
	step.wanted = is_watched(&step.request);
	if (step.wanted || options_any_typed()) {
		options_warn_idle(&step.request);
		options_log_site_mistakes();
		options_export_to_prologs(sp, &step.request);
		options_export_here(&step.request);
	}
}

void srun_launch(spank_t sp)
{
	const struct site *site = options_site();
	uint32_t job = 0, number = 0;

	if (!step.wanted || step.started)
		return;
	/* Once: Slurm calls this for each component of a heterogeneous step. */
	step.started = true;
	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &number) != ESPANK_SUCCESS) {
		slurm_error("robust: srun: the step is not supervised: Slurm did not report its id");
		return;
	}
	if (getenv("SLURM_HET_SIZE") != NULL) {
		slurm_error("robust: srun: step %u.%u is not supervised: it is part of a heterogeneous job", job, number);
		return;
	}
	if (access(site->command, X_OK) != 0) {
		slurm_error("robust: srun: step %u.%u is not supervised: there is no srobust at %s on this node; "
			    "set command= in plugstack.conf to its path",
			    job, number, site->command);
		return;
	}
	attach_start(site->command, job, number, &step.request);
}
