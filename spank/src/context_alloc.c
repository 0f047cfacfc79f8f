/* sbatch and salloc: the job's choice goes to its prologs, and to the sruns in it. */
#include "contexts.h"
#include "options.h"

void alloc_post_opt(spank_t sp)
{
	struct request request = options_effective(sp, lookup_here);

	if (is_watched(&request) || options_any_typed()) {
		options_tell_idle(&request);
		options_tell_site_mistakes();
		options_tell_prologs(sp, &request);
		/* salloc's shell has this process's environment. A batch script gets it again on its node, since
		 * `--export=NONE` would lose it here. */
		options_export_here(&request);
	}
}
