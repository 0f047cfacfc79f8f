/* What the site chose: the arguments behind the plugin's name in plugstack.conf. */
#ifndef SROBUST_SITE_H
#define SROBUST_SITE_H

#include "values.h"

struct site {
	char command[FOLDER_BYTES]; /* command=PATH: srobust */
	char python[FOLDER_BYTES];  /* python=DIR: where our sitecustomize.py lies; empty for none */
	char exits[FOLDER_BYTES];   /* exits=DIR: where files of tasks' ends go; empty for none */
	char dumps[FOLDER_BYTES];   /* dumps=DIR: where ranks put what they dump of themselves; empty for none */
	enum mode mode;		    /* mode=off|observe|on: of jobs that do not say --robust */
	bool flight_recorder;	    /* flight_recorder=on|off */
};

void site_defaults(struct site *site);

/* Take one argument. NULL where it is allowed, else what is; the site is then as it was. */
const char *site_take(struct site *site, const char *argument);

#endif
