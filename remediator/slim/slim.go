// Package slim reads lists of objects that others write, at a cost that is known before it is paid. A pod may have 1.5 MB, a node or a
// namespace any number of pods, and a kubelet writes the ResourceSlices of its node: lists of whole objects have no upper size. Here a list
// is decoded item by item while it arrives, what no decision needs is dropped from each, and a list that is too large all the same is an
// error that names it. Who reads it decides nothing about that node or job, as for any list that cannot be read.
package slim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// maxKept is the most that is kept of one list, in bytes of its items as protobuf. A pod without what is dropped has 2 to 4 KB: that is
	// a job of 4,000 pods.
	maxKept = 16 << 20
	// maxRead is the most that is read of one list, in bytes of JSON: it costs about five seconds of a core.
	maxRead = 256 << 20
	// maxAnnotation is the longest value of an annotation that is kept, in bytes. Those of pods that we read are names.
	maxAnnotation = 1 << 10
	// atOnce is how many lists are read at a time.
	atOnce = 4
)

// ErrTooLarge says that a list is larger than what is read or kept of one.
var ErrTooLarge = errors.New("too large to judge")

// Reader reads from the API server, without a cache. Lists of pods, of their metadata and of ResourceSlices are slim, all else is read by
// the Reader inside.
type Reader struct {
	client.Reader
	pods, slices rest.Interface
	reading      chan struct{}
	maxRead      int
}

// New returns a Reader over another that asks the same API server.
func New(inside client.Reader, config *rest.Config, with *http.Client) (*Reader, error) {
	r := &Reader{Reader: inside, reading: make(chan struct{}, atOnce), maxRead: maxRead}
	for kind, to := range map[schema.GroupVersionKind]*rest.Interface{
		corev1.SchemeGroupVersion.WithKind("Pod"): &r.pods, resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"): &r.slices,
	} {
		made, err := apiutil.RESTClientForGVK(kind, true, false, config, serializer.NewCodecFactory(scheme.Scheme), with)
		if err != nil {
			return nil, fmt.Errorf("make a client for %s: %w", kind.Kind, err)
		}
		*to = made
	}
	return r, nil
}

// List reads a list. Its error is [ErrTooLarge], or that of the API server, whose kind is kept.
func (r *Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	const whole, metadata = "application/json", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	switch l := list.(type) {
	case *corev1.PodList:
		return read(ctx, r, r.pods, request{"pods", whole, opts}, &l.ListMeta, &l.Items, slimPod)
	case *resourceapi.ResourceSliceList:
		dropped := func(s *resourceapi.ResourceSlice) { slimMeta(&s.ObjectMeta) }
		return read(ctx, r, r.slices, request{"resourceslices", whole, opts}, &l.ListMeta, &l.Items, dropped)
	case *metav1.PartialObjectMetadataList:
		if l.GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("PodList") {
			dropped := func(m *metav1.PartialObjectMetadata) { slimMeta(&m.ObjectMeta) }
			return read(ctx, r, r.pods, request{"pods", metadata, opts}, &l.ListMeta, &l.Items, dropped)
		}
	}
	return r.Reader.List(ctx, list, opts...) //nolint:wrapcheck // it is the Reader inside that answers
}

// Manager is a manager whose API reader is a [Reader].
type Manager struct {
	ctrl.Manager
	reader *Reader
}

// NewManager returns the manager with a [Reader] over its API reader.
func NewManager(inside ctrl.Manager) (*Manager, error) {
	r, err := New(inside.GetAPIReader(), inside.GetConfig(), inside.GetHTTPClient())
	return &Manager{inside, r}, err
}

// GetAPIReader returns the [Reader].
func (m *Manager) GetAPIReader() client.Reader { return m.reader }

// request is what is asked of the API server: a resource, how it is encoded, and which of its objects.
type request struct {
	resource, accept string
	opts             []client.ListOption
}

// sized is a pointer to an object that knows its size as protobuf, in bytes.
type sized[T any] interface {
	*T
	Size() int
}

// read reads one list into meta and items.
func read[T any, P sized[T]](
	ctx context.Context, r *Reader, api rest.Interface, ask request, meta *metav1.ListMeta, items *[]T, slim func(*T),
) error {
	options := (&client.ListOptions{}).ApplyOptions(ask.opts)
	which := options.AsListOptions()
	select {
	case r.reading <- struct{}{}:
		defer func() { <-r.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	body, err := api.Get().NamespaceIfScoped(options.Namespace, options.Namespace != "").Resource(ask.resource).
		VersionedParams(which, scheme.ParameterCodec).SetHeader("Accept", ask.accept).Stream(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the kind of the error counts
	}
	defer body.Close()
	*items = nil
	kept := 0
	err = decode(&limited{from: body, left: r.maxRead}, meta, func(from *json.Decoder) error {
		var item T
		if err := from.Decode(&item); err != nil {
			return err //nolint:wrapcheck // decode's caller names the list
		}
		slim(&item)
		if kept += P(&item).Size(); kept > maxKept {
			return ErrTooLarge
		}
		*items = append(*items, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("the %s of namespace %q with fields %q, labels %q: %w",
			ask.resource, options.Namespace, which.FieldSelector, which.LabelSelector, err)
	}
	return nil
}

// decode calls each at each item of a list.
func decode(from io.Reader, meta *metav1.ListMeta, each func(*json.Decoder) error) error {
	d := json.NewDecoder(from)
	if err := expect(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err //nolint:wrapcheck // read names the list
		}
		switch key {
		case "metadata":
			err = d.Decode(meta)
		case "items":
			err = decodeItems(d, each)
		default:
			err = d.Decode(new(json.RawMessage)) // kind and apiVersion
		}
		if err != nil {
			return err
		}
	}
	return expect(d, '}')
}

func decodeItems(d *json.Decoder, each func(*json.Decoder) error) error {
	begin, err := d.Token()
	if err != nil || begin == nil { // null is an empty list
		return err //nolint:wrapcheck // read names the list
	}
	if begin != json.Delim('[') {
		return fmt.Errorf("items are %v, not a list", begin)
	}
	for d.More() {
		if err := each(d); err != nil {
			return err
		}
	}
	return expect(d, ']')
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v is expected", got, want)
	}
	return err //nolint:wrapcheck // read names the list
}

// limited is a reader that fails where [io.LimitedReader] would pretend the end.
type limited struct {
	from io.Reader
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, ErrTooLarge
	}
	n, err := l.from.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err //nolint:wrapcheck // a reader's error
}

// slimPod drops what no decision needs: how the containers run, and their volumes.
func slimPod(p *corev1.Pod) {
	slimMeta(&p.ObjectMeta)
	p.Spec.Volumes = nil
	slimContainers(p.Spec.InitContainers)
	slimContainers(p.Spec.Containers)
	p.Spec.EphemeralContainers = nil
}

func slimContainers(all []corev1.Container) {
	for i, c := range all {
		all[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
}

func slimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	maps.DeleteFunc(m.Annotations, func(_, value string) bool { return len(value) > maxAnnotation })
}
