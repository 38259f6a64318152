"""Everything the tool says, as plain frozen data, and its JSON form."""
