package cluster

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
)

//go:embed audit.yaml
var auditPolicy []byte

// Audited is a request that the API server has answered.
type Audited struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  struct{ Resource, Subresource, Namespace, Name string }
	// RequestObject is the body, of requests that have one.
	RequestObject  runtime.RawExtension
	ResponseStatus struct{ Code int }
}

// AuditLog is what the API server has done so far, see [Options.Audit].
func (c *Cluster) AuditLog() ([]Audited, error) {
	text, err := os.ReadFile(filepath.Join(c.Dir, "audit.log"))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var all []Audited
	for line := range bytes.Lines(text) {
		var one Audited
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		all = append(all, one)
	}
	return all, nil
}
