"""First words of a program's command line that make it something else than a rank."""

SUPERVISE, AGENT, SENTINEL = "--supervise", "--agent", "--sentinel"
