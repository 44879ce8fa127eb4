"""The commands of `weirgate`, one file each, and what they share.

Belongs here: from options to an exit code, and words for people. Never: parsing options (`__main__`), nor anything that
the server does as well: a command asks the running server, or the same parts that it is made of.

    serving   weirgate serve       usage  weirgate usage      compact  weirgate compact (the dry run itself: dry_run)
    checking  weirgate check       keys   weirgate keys       doctor   weirgate doctor
    where     finds configuration, running server, database   table    rows and columns, for people and for pipes
    settings  weirgate settings    skills weirgate skills     database  weirgate db, weirgate purge
    running   speaks to a running server                      outcome  exit codes, and failures as one line
"""
