/* How each task of a step ended, in a file that the step's user can read, for the watch beside it. */
#ifndef SROBUST_EXITS_H
#define SROBUST_EXITS_H

#include <slurm/spank.h>

/* Make the file, in a folder of root's: as root, before any task runs. Where that fails, exits are not recorded. */
void exits_open(spank_t sp, const char *folder);

/* Its path; "" for none. */
const char *exits_path(void);

/* Write the line of a task that has ended. */
void exits_note(spank_t sp);

/* Remove the file: the step has ended on this node. A reader that has it open can read on. */
void exits_close(void);

#endif
