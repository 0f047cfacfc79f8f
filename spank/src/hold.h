/* Delays the end of an srun whose step has failed until its watch has decided. */
#ifndef SROBUST_HOLD_H
#define SROBUST_HOLD_H

/* The descriptor of the watch's end of the connection, and the variable that names it. */
#define HOLD_FD	      3
#define HOLD_VARIABLE "SROBUST_HOLD=3"

/* Make a connection to the watch that is started next, and have this process wait for its decision where it ends with
 * an exit code other than 0. Returns the watch's end, which the caller closes; -1 where that fails: srun then ends at
 * once, as without us. */
int hold_prepare(void);

/* In the watch, before it is executed: whether srun has reported the end of its step, or has ended. */
int hold_is_over(int fd);

#endif
