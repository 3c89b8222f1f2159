"""The policy core: events in, commands out, time as an argument. No I/O, no protobuf, no clock."""
