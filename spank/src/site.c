#include "site.h"

#include <stdio.h>
#include <string.h>

#ifndef SROBUST_COMMAND
#define SROBUST_COMMAND "/opt/slurm_robust/bin/srobust"
#endif
#ifndef SROBUST_PYTHON_DIR
#define SROBUST_PYTHON_DIR "/usr/local/share/slurm_robust/spank"
#endif

#define SROBUST_EXITS_DIR "/run/slurm_robust/exits"
#define FOLDER_OR_NONE	  "expected an absolute path, or none"

/* With these marks `srobust doctor` finds the compiled-in paths in the file, without loading it. */
#define COMMAND_MARK "srobust-built-in command="
#define PYTHON_MARK  "srobust-built-in python="

static const char built_in_command[] __attribute__((used)) = COMMAND_MARK SROBUST_COMMAND;
static const char built_in_python[] __attribute__((used)) = PYTHON_MARK SROBUST_PYTHON_DIR;

void site_defaults(struct site *site)
{
	memset(site, 0, sizeof *site);
	snprintf(site->command, sizeof site->command, "%s", built_in_command + strlen(COMMAND_MARK));
	snprintf(site->python, sizeof site->python, "%s", built_in_python + strlen(PYTHON_MARK));
	snprintf(site->exits, sizeof site->exits, "%s", SROBUST_EXITS_DIR);
	site->mode = MODE_OFF;
	site->flight_recorder = true;
}

/* The text behind `name=`; NULL where the argument is another one. */
static const char *after(const char *argument, const char *name)
{
	size_t length = strlen(name);

	return strncmp(argument, name, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

static bool absolute(const char *value)
{
	return value[0] == '/' && path_is_plain(value, FOLDER_BYTES);
}

static const char *take_folder(char out[FOLDER_BYTES], const char *value)
{
	if (strcmp(value, "none") == 0)
		value = "";
	else if (!absolute(value))
		return FOLDER_OR_NONE;
	snprintf(out, FOLDER_BYTES, "%s", value);
	return NULL;
}

const char *site_take(struct site *site, const char *argument)
{
	const char *value;

	if ((value = after(argument, "command")) != NULL) {
		if (!absolute(value))
			return "expected the absolute path of srobust";
		snprintf(site->command, sizeof site->command, "%s", value);
	} else if ((value = after(argument, "python")) != NULL) {
		if (strchr(value, ':') != NULL)
			return FOLDER_OR_NONE;
		return take_folder(site->python, value);
	} else if ((value = after(argument, "exits")) != NULL) {
		return take_folder(site->exits, value);
	} else if ((value = after(argument, "dumps")) != NULL) {
		return take_folder(site->dumps, value);
	} else if ((value = after(argument, "mode")) != NULL) {
		struct request request = {0};

		if (value[0] == '\0' || value_take(&request, FIELD_MODE, value) != NULL)
			return "expected off, observe or on";
		site->mode = request.mode;
	} else if ((value = after(argument, "flight_recorder")) != NULL) {
		if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
			return "expected on or off";
		site->flight_recorder = strcmp(value, "on") == 0;
	} else {
		return "there is no such argument; known are command=, mode=, python=, exits=, dumps=, flight_recorder=";
	}
	return NULL;
}
