/* The work in each of Slurm's contexts. All functions are void: no failure of ours reaches Slurm. */
#ifndef SROBUST_CONTEXTS_H
#define SROBUST_CONTEXTS_H

#include <slurm/spank.h>

void alloc_post_opt(spank_t sp);  /* sbatch, salloc: the options have been read */
void srun_post_opt(spank_t sp);	  /* srun: the same */
void srun_launch(spank_t sp);	  /* srun: job and step have their ids, no task runs yet */
void stepd_post_opt(spank_t sp);  /* slurmstepd, as root: the same, once for each step and node */
void task_before_exec(spank_t sp);/* in the task, as the user */

void stepd_task_ended(spank_t sp);/* as root: a task has ended */
void stepd_over(void);		  /* as root: slurmstepd ends */

#endif
