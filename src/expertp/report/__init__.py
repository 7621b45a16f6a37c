"""The report of a study: a pure function of its directory to one self-contained page. Building it never trains."""
