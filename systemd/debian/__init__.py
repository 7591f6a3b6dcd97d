"""Builds the Debian package: ``make deb`` leaves ``dist/appliance_VERSION_ARCH.deb``.

    __main__       the steps, in their order
    environment    the virtual environment in /opt, and ZooKeeper's jars with their licences
    control        what dpkg reads: control file, conffiles, checksums, maintainer scripts
    manual_pages   man pages from the help of the commands and from the descriptions of the keys
    documents      commented configuration, completion, licences

The package is made from a staging directory by dpkg-deb.  It needs the Python of the distribution that it is for, since
the virtual environment uses that one; so it is built on the distribution that it is for.
"""
