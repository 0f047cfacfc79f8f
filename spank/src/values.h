/* What a job may ask for, and what it may say: pure text in, checked values out. Knows nothing of Slurm. */
#ifndef SROBUST_VALUES_H
#define SROBUST_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mode { MODE_UNSET, MODE_OFF, MODE_OBSERVE, MODE_ON };

#define SPARES_BYTES 8
#define TIMEOUT_BYTES 24
#define LAYOUT_BYTES 256
#define FOLDER_BYTES 1024
#define SHOWN_BYTES 64
#define EXIT_LINE_BYTES 96

/* What was asked for; an empty text is what nobody asked for. Fixed sizes: nothing to allocate, nothing to leak. */
struct request {
	enum mode mode;
	bool is_sites_mode; /* nobody asked for `mode`: it is what the site has for such jobs */
	char spares[SPARES_BYTES];
	char hang_timeout[TIMEOUT_BYTES];
	char layout[LAYOUT_BYTES];
	char checkpoint_dir[FOLDER_BYTES];
};

enum field { FIELD_MODE, FIELD_SPARES, FIELD_LAYOUT, FIELD_CHECKPOINT_DIR, FIELD_HANG_TIMEOUT, FIELDS };

/* The word for a mode, as it goes to prologs and into the environment; "" for none. */
const char *mode_word(enum mode mode);

/* Check `text` and put it into `out`. NULL where it is allowed, else what would be; `out` is then as it was.
 * For FIELD_MODE no text at all (NULL, "", or Slurm's own "(null)") means on: `--robust` was typed alone. */
const char *value_take(struct request *out, enum field field, const char *text);

/* Whether anything was asked for in this field. */
bool value_given(const struct request *request, enum field field);

/* The field as text, "" where it was not asked for. */
const char *value_text(const struct request *request, enum field field);

/* A name of a file or folder that may stand in an argument, a log and an environment: no quotes, no control
 * characters, nothing that a shell would take, no `..`. */
bool path_is_plain(const char *text, size_t limit);

/* What was typed, fit for a log: cut, and with a ? for each byte that could mean something to who reads it. */
const char *shown(const char *text, char out[SHOWN_BYTES]);

/* `TASK CODE SIGNAL SECONDS`, of a status as waitpid gives it: code or signal is 0, or both are. */
void exit_line(char out[EXIT_LINE_BYTES], uint32_t task, int status, long long seconds, long nanoseconds);

/* Whether SLURM_STEP_ID (NULL for none) says that this is inside a step, not in a batch script or an interactive
 * shell, which newer Slurms number too. */
bool inside_step(const char *step_id);

#endif
