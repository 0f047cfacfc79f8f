/* The site's settings: the arguments behind the plugin's name in plugstack.conf. */
#ifndef SROBUST_SITE_H
#define SROBUST_SITE_H

#include "values.h"

struct site {
	char command[FOLDER_BYTES]; /* command=PATH: srobust */
	char python[FOLDER_BYTES];  /* python=DIR: folder of our sitecustomize.py; empty for none */
	char exits[FOLDER_BYTES];   /* exits=DIR: folder for the records of tasks' exits; empty for none */
	char dumps[FOLDER_BYTES];   /* dumps=DIR: folder for ranks' dumps; empty for none */
	enum mode mode;		    /* mode=off|observe|on: of jobs without --robust */
	bool flight_recorder;	    /* flight_recorder=on|off */
};

void site_defaults(struct site *site);

/* Take one argument. Returns NULL, or, with the site unchanged, what would be allowed. */
const char *site_take(struct site *site, const char *argument);

#endif
