// What all TLS of this program has in common, by pre-shared keys and by certificates: 1.3, its ciphers and groups,
// nothing that outlives a connection.
#pragma once

struct ssl_ctx_st;

namespace motley::net {

// The caller's, to be freed by SSL_CTX_free. Takes nobody yet: the caller says by what peers are known.
ssl_ctx_st* make_tls_context(bool accepts);

}  // namespace motley::net
