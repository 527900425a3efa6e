// Package request is the one way in which a person orders something about a node: `kubectl pitcrew` writes a [Request] into an annotation
// of the Node, the remediator carries it out in one patch, and its [Answer] takes the place of the request. [Carry] is pure, so the
// plugin shows with it what the remediator will do. Abort, about a job, is an annotation of the job, for its owner may write no Node.
//
// Admission policies reserve the annotation, as they do the records: whoever may write it may as well write those.
package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

// Kind is what a person orders.
type Kind string

// The kinds of requests.
const (
	Quarantine Kind = "quarantine"
	// Release validates the node first where the policy says so; ReleaseNow does not.
	Release    Kind = "release"
	ReleaseNow Kind = "release-now"
	// Repair approves a repair, Stop ends the visit under way and keeps others from beginning, Check checks the node as a sweep does.
	Repair Kind = "repair"
	Stop   Kind = "stop"
	Check  Kind = "check"
)

// maxText is the most bytes of the annotation: JSON makes six of a control character.
const maxText = 12 << 10

// Request is an order of a person, and its answer once it has one.
type Request struct {
	// ID tells an answer from that to another request.
	ID   string `json:"id" max:"64"`
	Kind Kind   `json:"kind" max:"64"`
	// About is the id of the quarantine that the person has seen; empty: the node was in service.
	About  string    `json:"about,omitempty" max:"64"`
	At     time.Time `json:"at"`
	User   string    `json:"user,omitempty" max:"256"`
	Reason string    `json:"reason,omitempty" max:"text"`
	// Answer is nil until a remediator has carried the request out, or refused it.
	Answer *Answer `json:"answer,omitempty"`
}

// Answer is what has become of a request.
type Answer struct {
	At time.Time `json:"at"`
	// Done is set if it was carried out; else Text says why not.
	Done bool   `json:"done"`
	Text string `json:"text" max:"text"`
}

// Of returns the request in a Node's annotations, with its answer if it has one; nil: there is none.
func Of(n *corev1.Node) (*Request, error) {
	text, ok := n.Annotations[conditions.AnnotationRequest]
	if !ok {
		return nil, nil
	}
	var r Request
	err := error(nil)
	switch {
	case len(text) > maxText:
		err = fmt.Errorf("%d bytes are more than any request has", len(text))
	default:
		if err = json.Unmarshal([]byte(text), &r); err == nil {
			err = record.Check(&r)
		}
	}
	if err == nil && r.ID == "" {
		err = errors.New("it has no id")
	}
	if err != nil {
		return nil, fmt.Errorf("decode annotation %s: %w", conditions.AnnotationRequest, err)
	}
	return &r, nil
}

// Put writes a request into a Node's annotations.
func (r *Request) Put(n *corev1.Node) {
	by := r.By().Clean()
	r.User, r.Reason = by.User, by.Reason
	text, err := json.Marshal(r)
	if err != nil {
		text = []byte("{}") // a time that JSON cannot express, which no clock shows
	}
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, conditions.AnnotationRequest, string(text))
}

// Waits reports whether no remediator has answered the request yet. A nil request waits for nothing.
func (r *Request) Waits() bool { return r != nil && r.Answer == nil }

// By returns who asks, and why.
func (r *Request) By() quarantine.Manual { return quarantine.Manual{User: r.User, Reason: r.Reason} }

// Regard notes which quarantine of a node the request is about, unless its record cannot be read.
func (r *Request) Regard(n *corev1.Node) {
	q, err := causes.RecordOf(n)
	if err == nil {
		r.About = about(q)
	}
}

// about returns the id of the quarantine that takes a node out of service; empty: none does.
func about(q *causes.Record) string {
	if q == nil || q.Phase != causes.Quarantined {
		return ""
	}
	return q.ID
}
