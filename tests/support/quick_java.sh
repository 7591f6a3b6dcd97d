#!/bin/sh
# The Java of the tests' ensembles.  Their nodes are killed, but no power fails: what they write need not reach the disk,
# which takes seconds beside tests that fill it.
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" -Dzookeeper.forceSync=no "$@"
