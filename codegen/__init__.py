"""From a Plan to source text: strings only; whoever calls it writes the files."""
