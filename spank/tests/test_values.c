/* Built with the address and undefined-behaviour sanitizers by `make check`. Prints what is wrong; exit 1 then. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "../src/site.h"
#include "../src/values.h"
#include "check.h"

static void taken(enum field field, const char *text, const char *expected)
{
	struct request request = {0};
	/* On the heap and no byte longer than needed: the sanitizer sees who reads beyond the end. */
	char *copy = text != NULL ? strdup(text) : NULL;
	const char *why = value_take(&request, field, copy);

	CHECK(why == NULL, "field %d refused '%s': %s", field, text, why);
	CHECK(strcmp(value_text(&request, field), expected) == 0, "field %d of '%s' is '%s'", field, text,
	      value_text(&request, field));
	CHECK(value_given(&request, field), "field %d of '%s' counts as not given", field, text);
	free(copy);
}

static void refused(enum field field, const char *text)
{
	struct request request = {0}, before = {0};
	char *copy = strdup(text);

	CHECK(value_take(&request, field, copy) != NULL, "field %d took '%.60s'", field, text);
	CHECK(memcmp(&request, &before, sizeof request) == 0, "field %d: '%.60s' was refused and left a trace", field,
	      text);
	free(copy);
}

static void test_modes(void)
{
	taken(FIELD_MODE, NULL, "on");
	taken(FIELD_MODE, "", "on");
	taken(FIELD_MODE, "(null)", "on");
	taken(FIELD_MODE, "on", "on");
	taken(FIELD_MODE, "observe", "observe");
	taken(FIELD_MODE, "off", "off");
	refused(FIELD_MODE, "On");
	refused(FIELD_MODE, "on ");
	refused(FIELD_MODE, "of");
	refused(FIELD_MODE, "on\n");
}

static void test_numbers(void)
{
	taken(FIELD_SPARES, "0", "0");
	taken(FIELD_SPARES, "1024", "1024");
	taken(FIELD_HANG_TIMEOUT, "1", "1");
	taken(FIELD_HANG_TIMEOUT, "90.5", "90.5");
	taken(FIELD_HANG_TIMEOUT, "604800", "604800");
	taken(FIELD_HANG_TIMEOUT, "604800.00", "604800.00");
	for (enum field field = FIELD_SPARES; field < FIELDS; field++)
		refused(field, "");
	refused(FIELD_SPARES, "1025");
	refused(FIELD_SPARES, "-1");
	refused(FIELD_SPARES, "+1");
	refused(FIELD_SPARES, "1x");
	refused(FIELD_SPARES, "4294967297");
	refused(FIELD_HANG_TIMEOUT, "0");
	refused(FIELD_HANG_TIMEOUT, "0.9");
	refused(FIELD_HANG_TIMEOUT, "604801");
	refused(FIELD_HANG_TIMEOUT, "604800.01");
	refused(FIELD_HANG_TIMEOUT, "1.");
	refused(FIELD_HANG_TIMEOUT, ".5");
	refused(FIELD_HANG_TIMEOUT, "1e3");
	refused(FIELD_HANG_TIMEOUT, "nan");
	refused(FIELD_HANG_TIMEOUT, "inf");
	refused(FIELD_HANG_TIMEOUT, "60s");
	refused(FIELD_HANG_TIMEOUT, "18446744073709551617");
	refused(FIELD_HANG_TIMEOUT, "1.00000000000000000000000000000");
}

static void test_layouts(void)
{
	taken(FIELD_LAYOUT, "tp=2", "tp=2");
	taken(FIELD_LAYOUT, "tp=2,pp=4,dp=4,ep=1,cp=1,etp=999999", "tp=2,pp=4,dp=4,ep=1,cp=1,etp=999999");
	refused(FIELD_LAYOUT, "tp");
	refused(FIELD_LAYOUT, "tp=");
	refused(FIELD_LAYOUT, "tp=0");
	refused(FIELD_LAYOUT, "tp=02");
	refused(FIELD_LAYOUT, "tp=1000000");
	refused(FIELD_LAYOUT, "tp=2,");
	refused(FIELD_LAYOUT, ",tp=2");
	refused(FIELD_LAYOUT, "tp=2;pp=2");
	refused(FIELD_LAYOUT, "tp=2 ,pp=2");
	refused(FIELD_LAYOUT, "xp=2");
	refused(FIELD_LAYOUT, "fsdp=8");
	taken(FIELD_LAYOUT, "tp=2,order=tp-cp-ep-dp-pp,pp=2", "tp=2,order=tp-cp-ep-dp-pp,pp=2");
	taken(FIELD_LAYOUT, "order=dp,dp=8", "order=dp,dp=8");
	refused(FIELD_LAYOUT, "order=tp-pp");
	refused(FIELD_LAYOUT, "tp=2,order=");
	refused(FIELD_LAYOUT, "tp=2,order=tp-");
	refused(FIELD_LAYOUT, "tp=2,order=tp-etp");
	refused(FIELD_LAYOUT, "tp=2,order=tp-tp-tp-tp-tp-tp");
	refused(FIELD_LAYOUT, "tp=2,order=tp,order=tp");
	refused(FIELD_LAYOUT, "tp=2,order=tp;pp");
	refused(FIELD_LAYOUT, "tp=2,pp=4,tp=2");
	refused(FIELD_LAYOUT, "tp=2\n");
}

static void test_folders(void)
{
	taken(FIELD_CHECKPOINT_DIR, "ckpt", "ckpt");
	taken(FIELD_CHECKPOINT_DIR, "/a b/..c/d..", "/a b/..c/d..");
	taken(FIELD_CHECKPOINT_DIR, "/scratch/\xc3\xa4", "/scratch/\xc3\xa4");
	refused(FIELD_CHECKPOINT_DIR, "..");
	refused(FIELD_CHECKPOINT_DIR, "../a");
	refused(FIELD_CHECKPOINT_DIR, "/a/..");
	refused(FIELD_CHECKPOINT_DIR, "/a/../b");
	refused(FIELD_CHECKPOINT_DIR, "/a//../b");
	refused(FIELD_CHECKPOINT_DIR, "a\nb");
	refused(FIELD_CHECKPOINT_DIR, "a\"b");
	refused(FIELD_CHECKPOINT_DIR, "a'b");
	refused(FIELD_CHECKPOINT_DIR, "$(reboot)");
	refused(FIELD_CHECKPOINT_DIR, "a`b`");
	refused(FIELD_CHECKPOINT_DIR, "a\x1b[31m");
}

static void test_ten_kilobytes(void)
{
	char *text = malloc(10241);

	memset(text, '1', 10240);
	text[10240] = '\0';
	for (enum field field = FIELD_MODE; field < FIELDS; field++)
		refused(field, text);
	for (size_t n = 0; n + 5 <= 10240; n += 5)
		memcpy(text + n, "tp=2,", 5);
	memcpy(text + 10235, "tp=22", 5);
	refused(FIELD_LAYOUT, text);
	free(text);
}

static void test_what_is_shown(void)
{
	char out[SHOWN_BYTES], *long_text = malloc(501);

	memset(long_text, 'x', 500);
	long_text[500] = '\0';
	CHECK(strcmp(shown("plain", out), "plain") == 0, "%s", out);
	CHECK(strcmp(shown("a\nb\x1b%s", out), "a?b??s") == 0, "%s", out);
	CHECK(strcmp(shown(NULL, out), "") == 0, "%s", out);
	CHECK(strlen(shown(long_text, out)) == SHOWN_BYTES - 1, "%zu", strlen(out));
	CHECK(strcmp(out + SHOWN_BYTES - 5, "x...") == 0, "%s", out);
	free(long_text);
}

static void test_steps(void)
{
	CHECK(!inside_step(NULL), "no step");
	CHECK(!inside_step(""), "empty");
	CHECK(!inside_step("4294967291"), "batch");
	CHECK(!inside_step("4294967290"), "interactive");
	CHECK(!inside_step("-5") && !inside_step("-6"), "since 26.05");
	CHECK(!inside_step("batch") && !inside_step("12345678901234567890"), "no number of a step");
	CHECK(inside_step("0"), "0");
	CHECK(inside_step("17"), "17");
}

static void test_exit_lines(void)
{
	char out[EXIT_LINE_BYTES];

	exit_line(out, 3, 7 << 8, 1700000000, 5000000);
	CHECK(strcmp(out, "3 7 0 1700000000.005\n") == 0, "%s", out);
	exit_line(out, 0, SIGKILL | 0x80, 1, 999999999); /* with a core */
	CHECK(strcmp(out, "0 0 9 1.999\n") == 0, "%s", out);
	exit_line(out, UINT32_MAX, 255 << 8, INT64_MAX, 999999999);
	CHECK(strlen(out) < EXIT_LINE_BYTES && strstr(out, "4294967295 255 0 ") == out, "%s", out);
}

static void test_site_arguments(void)
{
	struct site site;
	char out[SHOWN_BYTES];
	const char *why;

	site_defaults(&site);
	CHECK(site.mode == MODE_OFF && site.flight_recorder, "defaults");
	CHECK(site_take(&site, "command=/opt/x/bin/srobust") == NULL, "command");
	CHECK(strcmp(site.command, "/opt/x/bin/srobust") == 0, "%s", site.command);
	CHECK(site_take(&site, "mode=observe") == NULL && site.mode == MODE_OBSERVE, "mode");
	CHECK(site_take(&site, "python=none") == NULL && site.python[0] == '\0', "python");
	CHECK(site_take(&site, "exits=/run/x") == NULL && strcmp(site.exits, "/run/x") == 0, "exits");
	CHECK(site_take(&site, "exits=none") == NULL && site.exits[0] == '\0', "exits");
	CHECK(site_take(&site, "dumps=/scratch/x") == NULL && strcmp(site.dumps, "/scratch/x") == 0, "dumps");
	CHECK(site_take(&site, "flight_recorder=off") == NULL && !site.flight_recorder, "flight_recorder");
	const char *wrong[] = {"",	"command",	  "command=",	   "command=bin/srobust", "mode=",  "mode=act",
			       "Mode=on", "colour=red", "flight_recorder=", "python=lib",  "exits=",     "exits=run", "dumps=../x", "dumps=/a\nb", "python=/a:/b",	    "=",	    "modes=on"};
	struct site before = site;

	for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
		why = site_take(&site, wrong[n]);
		CHECK(why != NULL, "took '%s'", shown(wrong[n], out));
		CHECK(memcmp(&site, &before, sizeof site) == 0, "'%s' left a trace", wrong[n]);
	}
}

/* Bytes at random never read or write beyond what they were given; the sanitizer watches. */
static void test_noise(void)
{
	srand(1);
	for (int round = 0; round < 200000; round++) {
		static const char alphabet[] = "tpdecfs=,0123456789./-onfbrv\n\"' \x80\xff";
		struct request request = {0};
		size_t length = (size_t)(rand() % 40);
		char *text = malloc(length + 1), out[SHOWN_BYTES];

		for (size_t n = 0; n < length; n++)
			text[n] = alphabet[(size_t)rand() % (sizeof alphabet - 1)];
		text[length] = '\0';
		for (enum field field = FIELD_MODE; field < FIELDS; field++)
			(void)value_take(&request, field, text);
		CHECK(strstr(request.checkpoint_dir, "../") == NULL || strstr(request.checkpoint_dir, "/../") == NULL,
		      "'%s'", shown(text, out));
		(void)inside_step(text);
		free(text);
	}
}

int main(void)
{
	test_modes();
	test_numbers();
	test_layouts();
	test_folders();
	test_ten_kilobytes();
	test_what_is_shown();
	test_steps();
	test_exit_lines();
	test_site_arguments();
	test_noise();
	if (failures == 0)
		puts("values: all checks hold");
	return failures != 0;
}
