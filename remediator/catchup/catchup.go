// Package catchup has a new leader wait until its cache shows what the leader before it has written.
//
// A standby watches the nodes, but its watch may be seconds late when it begins to lead. A place under a budget that the last leader took
// within these seconds would seem to be free: the new leader would quarantine one node too many.
package catchup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

const (
	// often is how often the cache is compared, which costs no request.
	often = 20 * time.Millisecond
	// listAgain is how often the API server is asked again: a node that is gone never comes to the cache.
	listAgain = time.Second
	// deadline bounds one call of [Gate.Wait].
	deadline = 5 * time.Second
	// page is how many nodes are listed with one request, unless they are larger than what is read of one list: their kubelets choose their
	// size. Then it is a fourth of that.
	page = 500
)

// Gate is closed until the cache shows some nodes as they were when the process began to lead. It is for concurrent use; nil is open.
type Gate struct {
	cache, live client.Reader
	which       []client.ListOption

	mu   sync.Mutex
	open bool
	// listing is the list that goes on with the next call, when the deadline has ended one: with large nodes it takes longer. nil: none.
	listing *listing
}

// listing is what is known of the nodes while they are listed.
type listing struct {
	versions map[string]string
	next     string
	page     int64
}

// New is a closed gate for the nodes that the options select; without any for all. live reads from the API server and not from the cache.
func New(cache, live client.Reader, which ...client.ListOption) *Gate {
	return &Gate{cache: cache, live: live, which: which}
}

// Quarantines selects the nodes with a status of ours. A node in service has none while it is checked.
var Quarantines = client.HasLabels{conditions.LabelStatus}

// Wait returns once the gate is open. It is to be called by a leader alone, before a decision that counts nodes. It fails when the nodes
// cannot be listed, or the cache does not catch up within 5 s; then it is to be called again.
func (g *Gate) Wait(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for {
		behind, err := g.versions(ctx)
		if err != nil {
			return fmt.Errorf("list the nodes that an earlier leader may have written: %w", err)
		}
		again, done := context.WithTimeout(ctx, listAgain)
		err = wait.PollUntilContextCancel(again, often, true, func(ctx context.Context) (bool, error) {
			return len(behind) == 0, g.compare(ctx, behind)
		})
		done()
		switch {
		case len(behind) == 0:
			g.open = true
			return nil
		case again.Err() == nil:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("the watch of nodes is late: of %d nodes, %s among them, the cache shows an old version",
				len(behind), slices.Min(slices.Collect(maps.Keys(behind))))
		}
	}
}

// versions are the resource versions of the nodes, by name.
func (g *Gate) versions(ctx context.Context) (map[string]string, error) {
	if g.listing == nil {
		g.listing = &listing{versions: map[string]string{}, page: page}
	}
	for l := g.listing; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		err := g.live.List(ctx, list, append(slices.Clip(g.which), client.Limit(l.page), client.Continue(l.next))...)
		switch {
		case errors.Is(err, slim.ErrTooLarge) && l.page > 1:
			l.page = max(1, l.page/4)
			continue
		case err != nil && ctx.Err() == nil:
			g.listing = nil // what it goes on from may have expired
			return nil, err //nolint:wrapcheck // the only caller does
		case err != nil:
			return nil, err //nolint:wrapcheck // the only caller does
		}
		for i := range list.Items {
			l.versions[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
		if l.next = list.Continue; l.next == "" {
			g.listing = nil
			return l.versions, nil
		}
	}
}

// compare drops the nodes of which the cache shows the version, or a later one.
func (g *Gate) compare(ctx context.Context, behind map[string]string) error {
	for name, version := range behind {
		var n corev1.Node
		switch err := g.cache.Get(ctx, client.ObjectKey{Name: name}, &n); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return fmt.Errorf("get node %s: %w", name, err)
		}
		// They are numbers of which a later one is greater (KEP-5504).
		order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, version)
		if err != nil {
			return fmt.Errorf("compare versions of node %s: %w", name, err)
		}
		if order >= 0 {
			delete(behind, name)
		}
	}
	return nil
}
