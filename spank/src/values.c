#include "values.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static const char *const LAYOUT_KEYS[] = {"tp", "pp", "dp", "ep", "cp", "etp"};
static const char ORDER[] = "order=";

enum { MAX_SPARES = 1024, MAX_TIMEOUT_S = 7 * 86400, MAX_SIZE_DIGITS = 6, MAX_ORDER = 5 };

/* Not isdigit(): it reads the user's locale. */
static bool digit(char c)
{
	return c >= '0' && c <= '9';
}

const char *mode_word(enum mode mode)
{
	switch (mode) {
	case MODE_OFF:
		return "off";
	case MODE_OBSERVE:
		return "observe";
	case MODE_ON:
		return "on";
	case MODE_UNSET:
		break;
	}
	return "";
}

static const char *take_mode(struct request *out, const char *text)
{
	if (text == NULL || text[0] == '\0' || strcmp(text, "(null)") == 0) {
		out->mode = MODE_ON;
		return NULL;
	}
	for (enum mode mode = MODE_OFF; mode <= MODE_ON; mode++) {
		if (strcmp(text, mode_word(mode)) == 0) {
			out->mode = mode;
			return NULL;
		}
	}
	return "expected on, observe or off";
}

static bool spares_fit(const char *text)
{
	unsigned number = 0;
	size_t n = 0;

	for (; digit(text[n]) && n < 5; n++)
		number = number * 10 + (unsigned)(text[n] - '0');
	return n > 0 && text[n] == '\0' && number <= MAX_SPARES;
}

/* Seconds: digits, and perhaps a point and more digits. */
static bool timeout_fits(const char *text)
{
	unsigned long whole = 0;
	size_t n = 0;
	bool more = false;

	if (strlen(text) >= TIMEOUT_BYTES)
		return false;
	for (; digit(text[n]) && n < 7; n++)
		whole = whole * 10 + (unsigned long)(text[n] - '0');
	if (n == 0)
		return false;
	if (text[n] == '.') {
		size_t first = ++n;

		for (; digit(text[n]); n++)
			more = more || text[n] != '0';
		if (n == first)
			return false;
	}
	if (text[n] != '\0')
		return false;
	return whole >= 1 && (whole < MAX_TIMEOUT_S || (whole == MAX_TIMEOUT_S && !more));
}

/* The end of the key of `LAYOUT_KEYS` with which a text begins, and which it is; NULL where there is none. */
static const char *layout_key(const char *text, unsigned *which)
{
	for (unsigned k = 0; k < sizeof LAYOUT_KEYS / sizeof *LAYOUT_KEYS; k++) {
		size_t length = strlen(LAYOUT_KEYS[k]);

		if (strncmp(text, LAYOUT_KEYS[k], length) == 0 && !(text[length] >= 'a' && text[length] <= 'z')) {
			*which = k;
			return text + length;
		}
	}
	return NULL;
}

/* The end of one `tp=4`, no size twice; NULL where there is none. */
static const char *layout_pair(const char *text, unsigned *seen)
{
	unsigned which = 0;
	size_t digits = 0;
	const char *size = layout_key(text, &which);

	if (size == NULL || *size++ != '=' || (*seen & 1u << which))
		return NULL;
	*seen |= 1u << which;
	while (digits <= MAX_SIZE_DIGITS && digit(size[digits]))
		digits++;
	return digits > 0 && digits <= MAX_SIZE_DIGITS && size[0] != '0' ? size + digits : NULL;
}

/* The end of `tp-cp-ep-dp-pp` or a shorter order; NULL where there is none. */
static const char *layout_order(const char *text)
{
	unsigned which = 0, kinds = 0;

	for (;;) {
		text = layout_key(text, &which);
		if (text == NULL || strcmp(LAYOUT_KEYS[which], "etp") == 0 || ++kinds > MAX_ORDER)
			return NULL;
		if (*text != '-')
			return text;
		text++;
	}
}

static bool layout_fits(const char *text)
{
	unsigned seen = 0;
	bool ordered = false;

	if (strlen(text) >= LAYOUT_BYTES)
		return false;
	for (;;) {
		if (!ordered && strncmp(text, ORDER, strlen(ORDER)) == 0) {
			text = layout_order(text + strlen(ORDER));
			ordered = true;
		} else {
			text = layout_pair(text, &seen);
		}
		if (text == NULL)
			return false;
		if (*text == '\0')
			return seen != 0;
		if (*text++ != ',')
			return false;
	}
}

bool path_is_plain(const char *text, size_t limit)
{
	size_t length = strnlen(text, limit);

	if (length == 0 || length >= limit)
		return false;
	for (size_t n = 0; n < length; n++) {
		unsigned char c = (unsigned char)text[n];

		if (c < ' ' || c == 0x7f || strchr("\"'`\\$;&|<>*?!(){}[]#~", c) != NULL)
			return false;
	}
	for (const char *part = text; part != NULL; part = strchr(part, '/')) {
		part += *part == '/';
		if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
			return false;
	}
	return true;
}

const char *value_take(struct request *out, enum field field, const char *text)
{
	if (field == FIELD_MODE)
		return take_mode(out, text);
	if (text == NULL)
		text = "";
	switch (field) {
	case FIELD_SPARES:
		if (!spares_fit(text))
			return "expected a number of nodes, 0 to 1024";
		snprintf(out->spares, sizeof out->spares, "%s", text);
		return NULL;
	case FIELD_LAYOUT:
		if (!layout_fits(text))
			return "expected sizes such as tp=2,pp=4,dp=4 (tp, pp, dp, ep, cp, etp; no size twice)";
		snprintf(out->layout, sizeof out->layout, "%s", text);
		return NULL;
	case FIELD_CHECKPOINT_DIR:
		if (!path_is_plain(text, FOLDER_BYTES))
			return "expected a folder, of at most 1023 bytes, without .. and without quotes or other "
			       "characters that are special to a shell";
		snprintf(out->checkpoint_dir, sizeof out->checkpoint_dir, "%s", text);
		return NULL;
	case FIELD_HANG_TIMEOUT:
		if (!timeout_fits(text))
			return "expected seconds, 1 to 604800";
		snprintf(out->hang_timeout, sizeof out->hang_timeout, "%s", text);
		return NULL;
	case FIELD_MODE:
	case FIELDS:
		break;
	}
	return "there is no such option";
}

const char *value_text(const struct request *request, enum field field)
{
	switch (field) {
	case FIELD_MODE:
		return mode_word(request->mode);
	case FIELD_SPARES:
		return request->spares;
	case FIELD_LAYOUT:
		return request->layout;
	case FIELD_CHECKPOINT_DIR:
		return request->checkpoint_dir;
	case FIELD_HANG_TIMEOUT:
		return request->hang_timeout;
	case FIELDS:
		break;
	}
	return "";
}

bool value_given(const struct request *request, enum field field)
{
	return value_text(request, field)[0] != '\0';
}

const char *shown(const char *text, char out[SHOWN_BYTES])
{
	size_t n = 0;

	for (; text != NULL && text[n] != '\0' && n < SHOWN_BYTES - 4; n++)
		out[n] = text[n] >= ' ' && text[n] <= '~' && text[n] != '%' ? text[n] : '?';
	if (text != NULL && text[n] != '\0') {
		memcpy(out + n, "...", 3);
		n += 3;
	}
	out[n] = '\0';
	return out;
}

void exit_line(char out[EXIT_LINE_BYTES], uint32_t task, int status, long long seconds, long nanoseconds)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0, number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	snprintf(out, EXIT_LINE_BYTES, "%u %d %d %lld.%03ld\n", task, code, number, seconds, nanoseconds / 1000000);
}

bool inside_step(const char *step_id)
{
	unsigned long long number = 0;
	size_t n = 0;

	if (step_id == NULL)
		return false;
	/* Slurm's own step ids are above 0xfffffff0, or, since 26.05, negative. */
	for (; digit(step_id[n]) && n < 11; n++)
		number = number * 10 + (unsigned)(step_id[n] - '0');
	return n > 0 && step_id[n] == '\0' && number < 0xfffffff0ULL;
}
