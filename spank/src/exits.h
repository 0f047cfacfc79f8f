/* How each task of a step ended, in a file that the step's user can read, for the watch beside it. */
#ifndef SROBUST_EXITS_H
#define SROBUST_EXITS_H

#include <slurm/spank.h>

/* Make the file, in a folder of root's: as root, before any task runs. Where that cannot be, nobody is told. */
void exits_open(spank_t sp, const char *folder);

/* Where it is; "" for none. */
const char *exits_path(void);

/* A task has ended: its line. */
void exits_note(spank_t sp);

/* The step is over on this node: away with the file. Who has it open reads on. */
void exits_close(void);

#endif
