/* The only file with symbols that Slurm calls: it dispatches by context.
 *
 * Each of them returns 0, whatever happened: the plugin is optional, and a fault of ours is one line in a log. */
#include <slurm/spank.h>

#include "contexts.h"
#include "options.h"

#define EXPORTED __attribute__((visibility("default")))

extern const char plugin_name[] EXPORTED;
extern const char plugin_type[] EXPORTED;
extern const unsigned int plugin_version EXPORTED;
extern const unsigned int spank_plugin_version EXPORTED;

SPANK_PLUGIN(robust, 1)

EXPORTED int slurm_spank_init(spank_t sp, int ac, char **av)
{
	options_register(sp, ac, av);
	if (spank_context() == S_CTX_SLURMD)
		options_log_site_mistakes();
	return 0;
}

EXPORTED int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		alloc_post_opt(sp);
		break;
	case S_CTX_LOCAL:
		srun_post_opt(sp);
		break;
	case S_CTX_REMOTE:
		stepd_post_opt(sp);
		break;
	default:
		break;
	}
	return 0;
}

EXPORTED int slurm_spank_local_user_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	srun_launch(sp);
	return 0;
}

EXPORTED int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	stepd_task_ended(sp);
	return 0;
}

EXPORTED int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void)sp;
	(void)ac;
	(void)av;
	if (spank_context() == S_CTX_REMOTE)
		stepd_over();
	return 0;
}

EXPORTED int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	task_before_exec(sp);
	return 0;
}
