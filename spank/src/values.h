/* A job's request: checks text and makes values of it. Independent of Slurm. */
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

/* The request; a field that is empty was not requested. Fixed sizes: nothing to allocate, nothing to leak. */
struct request {
	enum mode mode;
	bool is_sites_mode; /* `mode` was not requested: it is the site's default */
	char spares[SPARES_BYTES];
	char hang_timeout[TIMEOUT_BYTES];
	char layout[LAYOUT_BYTES];
	char checkpoint_dir[FOLDER_BYTES];
};

enum field { FIELD_MODE, FIELD_SPARES, FIELD_LAYOUT, FIELD_CHECKPOINT_DIR, FIELD_HANG_TIMEOUT, FIELDS };

/* The name of a mode, for prologs and the environment; "" for none. */
const char *mode_word(enum mode mode);

/* Check `text` and put it into `out`. Returns NULL, or, with `out` unchanged, what would be allowed.
 * For FIELD_MODE no text (NULL, "", or Slurm's own "(null)") means on: `--robust` was typed alone. */
const char *value_take(struct request *out, enum field field, const char *text);

/* Whether this field was requested. */
bool value_given(const struct request *request, enum field field);

/* The field as text, "" where it was not requested. */
const char *value_text(const struct request *request, enum field field);

/* Whether a path is safe in an argument, a log and an environment: no quotes, no control characters, nothing special
 * to a shell, no `..`. */
bool path_is_plain(const char *text, size_t limit);

/* Typed text made safe for a log: cut, and with a ? for each byte that a reader or terminal could interpret. */
const char *shown(const char *text, char out[SHOWN_BYTES]);

/* `TASK CODE SIGNAL SECONDS`, of a status from waitpid: at least one of code and signal is 0. */
void exit_line(char out[EXIT_LINE_BYTES], uint32_t task, int status, long long seconds, long nanoseconds);

/* Whether this SLURM_STEP_ID (NULL for none) is a step's own, and not that of a batch script or an interactive shell,
 * which newer versions of Slurm number, too. */
bool inside_step(const char *step_id);

#endif
