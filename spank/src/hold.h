/* Holds srun's end, where its step has failed, until the watch beside it has decided. */
#ifndef SROBUST_HOLD_H
#define SROBUST_HOLD_H

/* The descriptor under which the watch finds its end of the connection, and the variable that tells it so. */
#define HOLD_FD	      3
#define HOLD_VARIABLE "SROBUST_HOLD=3"

/* Make a connection to the watch that is started next, and have this process wait for its decision when it ends with
 * an exit code other than 0. Returns the watch's end of it, which the caller closes; -1 where none could be made, and
 * srun then ends as it always does. */
int hold_prepare(void);

/* In the watch, before it is executed: whether srun has said that its step is over, or is gone itself. */
int hold_is_over(int fd);

#endif
