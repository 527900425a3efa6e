package cluster

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"k8s.io/client-go/rest"
)

// Proxy is a way to the API server on which every answer is seen. Whoever goes through it keeps the permissions of its own credentials.
type Proxy struct{ server *httptest.Server }

// StartProxy starts a proxy. It calls answered with every answer before the client gets it.
func (c *Cluster) StartProxy(answered func(*http.Response)) (*Proxy, error) {
	to, err := url.Parse(c.Admin.Host)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(c.Admin))
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	// clientcmd sends no token to a server without TLS.
	return &Proxy{httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ModifyResponse: func(r *http.Response) error {
			answered(r)
			return nil
		},
	})}, nil
}

// Close ends the proxy and all connections through it.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// redirect has a client go through the proxy.
func (p *Proxy) redirect(cfg *rest.Config) {
	cfg.Host = p.server.URL
	cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}
