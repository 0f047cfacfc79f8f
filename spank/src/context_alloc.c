/* sbatch and salloc: pass the job's choice to its prologs, and to the sruns in it. */
#include "contexts.h"
#include "options.h"

void alloc_post_opt(spank_t sp)
{
	struct request request = options_effective(sp, lookup_here);

	if (is_watched(&request) || options_any_typed()) {
		options_warn_idle(&request);
		options_log_site_mistakes();
		options_export_to_prologs(sp, &request);
		/* salloc's shell inherits this environment. A batch script gets the choice again on its node, since
		 * `--export=NONE` drops it here. */
		options_export_here(&request);
	}
}
