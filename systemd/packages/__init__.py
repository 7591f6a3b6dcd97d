"""Builds the packages: ``make deb`` and ``make rpm`` leave one in ``dist``.

    __main__       the steps, in their order
    description    what both packages say of themselves, and their scripts
    environment    the virtual environment in /opt, and ZooKeeper's jars with their licences
    documents      commented configuration, completion, licences
    manual_pages   man pages from the help of the commands and from the descriptions of the keys
    deb            what dpkg reads: control file, conffiles, checksums, questions
    rpm            what rpmbuild reads: the spec

A package is made from a staging directory, which is filled alike for both.  It needs the Python of the distribution
that it is for, since the virtual environment uses that one; so it is built on the distribution that it is for, or
with a Python of the same version there.
"""
