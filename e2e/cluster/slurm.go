package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// Slurmrestd stands in for slurmrestd, the outermost part of Slurm: it keeps the state and the reason of Slurm nodes, as
// slurm-operator reads and sets them. The pods of KWOK run no Slurm.
type Slurmrestd struct {
	mu    sync.Mutex
	nodes map[string]*SlurmNode
}

// SlurmNode is a node of Slurm.
type SlurmNode struct {
	Name    string   `json:"name"`
	State   []string `json:"state"`
	Reason  string   `json:"reason,omitempty"`
	Comment string   `json:"comment,omitempty"`
}

// AddNode registers an idle node, as its slurmd does.
func (s *Slurmrestd) AddNode(name string) {
	s.Update(name, func(n *SlurmNode) { n.State = []string{"IDLE"} })
}

// Update changes a node, as an administrator does with scontrol. It adds one that is not there.
func (s *Slurmrestd) Update(name string, change func(*SlurmNode)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] == nil {
		s.nodes[name] = &SlurmNode{Name: name}
	}
	change(s.nodes[name])
}

// Node is a node as it is now.
func (s *Slurmrestd) Node(name string) (SlurmNode, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		return SlurmNode{}, errors.New("Slurm has no node " + name)
	}
	return SlurmNode{n.Name, slices.Clone(n.State), n.Reason, n.Comment}, nil
}

// ServeHTTP serves a part of slurmrestd's API v0.0.44: GET /slurm/v0.0.44/nodes/ and jobs/, GET and POST /slurm/v0.0.44/node/NAME. DRAIN
// is a flag beside the state of a node, and UNDRAIN removes it together with the reason (Slurm 25.05, update_node).
func (s *Slurmrestd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := []*SlurmNode{}
	switch name := path.Base(r.URL.Path); {
	case strings.HasSuffix(r.URL.Path, "/jobs/"): // none runs
	case strings.HasSuffix(r.URL.Path, "/nodes/"):
		for _, n := range s.nodes {
			nodes = append(nodes, n)
		}
	case !strings.Contains(r.URL.Path, "/node/"):
		http.NotFound(w, r)
		return
	case s.nodes[name] == nil:
		http.NotFound(w, r)
		return
	case r.Method == http.MethodPost:
		var change struct {
			State           []string
			Reason, Comment *string
		}
		if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.nodes[name].set(change.State, change.Reason, change.Comment)
	default:
		nodes = append(nodes, s.nodes[name])
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"jobs": []any{}, "nodes": nodes, "last_update": map[string]any{"set": true, "number": time.Now().Unix()}})
}

func (n *SlurmNode) set(states []string, reason, comment *string) {
	if comment != nil {
		n.Comment = *comment
	}
	if reason != nil {
		n.Reason = *reason
	}
	for _, state := range states {
		switch state {
		case "DRAIN":
			if !slices.Contains(n.State, state) {
				n.State = append(n.State, state)
			}
		case "UNDRAIN":
			n.State, n.Reason = slices.DeleteFunc(n.State, func(s string) bool { return s == "DRAIN" }), ""
		}
	}
}

// StartSlurmOperator starts slurm-operator, without its webhooks. What it asks any slurmrestd, the stand-in answers.
func (c *Cluster) StartSlurmOperator(ctx context.Context) (*Slurmrestd, error) {
	_, kubeconfig, err := c.prepare(ctx, components.SlurmOperator, "config/crd/bases")
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, err
	}
	slurm := &Slurmrestd{nodes: map[string]*SlurmNode{}}
	server := &http.Server{Handler: slurm, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(c.ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // until it is closed
	p, err := c.run("slurm-operator", components.SlurmOperator.Path(c.Root), []string{
		"KUBECONFIG=" + kubeconfig, "HTTP_PROXY=http://" + listener.Addr().String(), "NO_PROXY=" + loopback,
	}, "--metrics-addr=0", "--health-addr=0", "--zap-log-level=debug")
	if err != nil {
		return nil, err
	}
	c.need(p)
	return slurm, nil
}
