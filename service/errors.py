"""What can be wrong with what the service is handed.

ServiceError
├── BundleError     a bundle's file is missing, altered or of an unknown format
├── StoreError      a store lacks the version asked for, or a version's name is malformed
├── QueryError      a query cannot be answered as asked
├── AddressError    the service cannot listen where it was told to
└── NotReadyError   no bundle is loaded yet
"""


class ServiceError(Exception):
    """A mistake the user can mend; its message says where, what was expected, what was found, what to do."""

    exit_status = 2


class BundleError(ServiceError):
    pass


class StoreError(ServiceError):
    pass


class QueryError(ServiceError):
    pass


class AddressError(ServiceError):
    pass


class NotReadyError(ServiceError):
    pass
