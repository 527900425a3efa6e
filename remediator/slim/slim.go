// Package slim reads objects that others write, and lists of them, at a cost that is known before it is paid. A pod may have 1.5 MB, which
// take 40 MB in memory, a node or a namespace any number of pods, and a kubelet writes the ResourceSlices of its node: lists of whole
// objects have no upper size. Here a list is decoded item by item while it arrives, what no decision needs is dropped from each, and a list
// or an object that is too large all the same is an error that names it. Who reads it decides nothing about that node or job, as for any
// list that cannot be read.
package slim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// maxKept is the most that is kept of one list, in bytes of memory. A pod without what is dropped takes about 10 KB: that is a job of
	// 4,000 pods.
	maxKept = 40 << 20
	// maxRead is the most that is read of one list, in bytes of JSON: it costs about five seconds of a core.
	maxRead = 256 << 20
	// maxAnnotation is the longest value of an annotation that is kept, in bytes. Those of pods that we read are names.
	maxAnnotation = 1 << 10
	// maxOfKubelet is the largest metadata of a static pod that are kept whole, in bytes: a kubelet may add any to each namespace.
	maxOfKubelet = 64 << 10
	// atOnce is how many lists are read at a time, and how many objects.
	atOnce = 4
)

// ErrTooLarge reports that a list is larger than what is read or kept of one, or that it costs too much to decode an object.
var ErrTooLarge = errors.New("too large to judge")

// Reader reads from the API server, without a cache. Its lists are slim.
type Reader struct {
	client.Reader
	api              func(schema.GroupVersionKind) (rest.Interface, string, error)
	reading, getting chan struct{}
	maxRead, maxKept int
}

// New returns a Reader over another that asks the same API server. Pods and ResourceSlices need no mapper.
func New(inside client.Reader, config *rest.Config, with *http.Client, mapper meta.RESTMapper) (*Reader, error) {
	known := map[schema.GroupVersionKind]string{
		corev1.SchemeGroupVersion.WithKind("Pod"): "pods", resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"): "resourceslices",
	}
	apis := sync.Map{}
	api := func(kind schema.GroupVersionKind) (rest.Interface, string, error) {
		resource, isKnown := known[kind]
		if !isKnown {
			mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
			if err != nil {
				return nil, "", err //nolint:wrapcheck // the kind of the error counts
			}
			resource = mapping.Resource.Resource
		}
		if made, ok := apis.Load(kind.GroupVersion()); ok {
			return made.(rest.Interface), resource, nil
		}
		made, err := apiutil.RESTClientForGVK(kind, true, false, config, serializer.NewCodecFactory(scheme.Scheme), with)
		if err != nil {
			return nil, "", fmt.Errorf("make a client for %s: %w", kind.Kind, err)
		}
		apis.Store(kind.GroupVersion(), made)
		return made, resource, nil
	}
	return &Reader{
		Reader: inside, api: api, reading: make(chan struct{}, atOnce), getting: make(chan struct{}, atOnce),
		maxRead: maxRead, maxKept: maxKept,
	}, nil
}

// List reads a list. Its error is [ErrTooLarge], or that of the API server, whose kind is kept.
func (r *Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind, err := apiutil.GVKForObject(list, scheme.Scheme)
	if err != nil {
		return fmt.Errorf("tell the kind of a list: %w", err)
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	api, resource, err := r.api(kind)
	if err != nil {
		return err
	}
	ask := request{api, resource, "application/json", opts}
	switch l := list.(type) {
	case *metav1.PartialObjectMetadataList:
		ask.accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		return read(ctx, r, ask, &l.ListMeta, &l.Items, func(text []byte) (m metav1.PartialObjectMetadata, size int, err error) {
			err = decodeMeta(text, &m)
			slimMeta(&m.ObjectMeta)
			return m, HeapOf(&m), err
		})
	case *unstructured.UnstructuredList:
		return r.readUnstructured(ctx, ask, kind, l)
	case *corev1.PodList:
		return readPods(ctx, r, ask, l)
	case *batchv1.JobList:
		return read(ctx, r, ask, &l.ListMeta, &l.Items, whole(Job))
	case *resourceapi.ResourceSliceList:
		return read(ctx, r, ask, &l.ListMeta, &l.Items, whole(func(s *resourceapi.ResourceSlice) { slimMeta(&s.ObjectMeta) }))
	case *corev1.EventList:
		return read(ctx, r, ask, &l.ListMeta, &l.Items, whole(func(e *corev1.Event) { slimMeta(&e.ObjectMeta) }))
	}
	return fmt.Errorf("a list of %s has no slim type: %T", kind.Kind, list)
}

// readUnstructured reads a list of objects that have no Go type here.
func (r *Reader) readUnstructured(ctx context.Context, ask request, kind schema.GroupVersionKind, l *unstructured.UnstructuredList) error {
	var m metav1.ListMeta
	if l.Object == nil {
		l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	}
	err := read(ctx, r, ask, &m, &l.Items, func(text []byte) (u unstructured.Unstructured, size int, err error) {
		if err := decodeUnstructured(text, &u); err != nil {
			return u, 0, err
		}
		u.SetGroupVersionKind(kind) // an item of a list need not have it
		u.SetManagedFields(nil)
		return u, HeapOf(&u), nil
	})
	l.SetResourceVersion(m.ResourceVersion)
	l.SetContinue(m.Continue)
	return err
}

// Manager is a manager whose API reader is a [Reader].
type Manager struct {
	ctrl.Manager
	reader *Reader
}

// NewManager returns the manager with a [Reader] over its API reader.
func NewManager(inside ctrl.Manager) (*Manager, error) {
	r, err := New(inside.GetAPIReader(), inside.GetConfig(), inside.GetHTTPClient(), inside.GetRESTMapper())
	return &Manager{inside, r}, err
}

// GetAPIReader returns the [Reader].
func (m *Manager) GetAPIReader() client.Reader { return m.reader }

// request is what is asked of the API server: a resource, how it is encoded, and which of its objects.
type request struct {
	api              rest.Interface
	resource, accept string
	opts             []client.ListOption
}

// turn waits for a turn among those that read at a time. done ends it.
func turn(ctx context.Context, among chan struct{}) (done func(), err error) {
	select {
	case among <- struct{}{}:
		return func() { <-among }, nil
	case <-ctx.Done():
		return nil, ctx.Err() //nolint:wrapcheck // a context's error
	}
}

// read reads one list into about and items. item decodes one without what is not needed of it, and returns its size in memory.
func read[T any](
	ctx context.Context, r *Reader, ask request, about *metav1.ListMeta, items *[]T, item func(text []byte) (one T, size int, err error),
) error {
	options := (&client.ListOptions{}).ApplyOptions(ask.opts)
	which := options.AsListOptions()
	done, err := turn(ctx, r.reading)
	if err != nil {
		return err
	}
	defer done()
	body, err := ask.api.Get().NamespaceIfScoped(options.Namespace, options.Namespace != "").Resource(ask.resource).
		SpecificallyVersionedParams(which, scheme.ParameterCodec, corev1.SchemeGroupVersion).SetHeader("Accept", ask.accept).Stream(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the kind of the error counts
	}
	defer body.Close()
	*items = nil
	kept := 0
	var text json.RawMessage
	err = decode(&limited{from: body, left: r.maxRead}, about, func(from *json.Decoder) error {
		if err := from.Decode(&text); err != nil {
			return err //nolint:wrapcheck // decode's caller names the list
		}
		one, size, err := item(text)
		if kept += size; err == nil && kept > r.maxKept {
			err = ErrTooLarge
		}
		if err == nil {
			*items = append(*items, one)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the %s of namespace %q with fields %q, labels %q: %w",
			ask.resource, options.Namespace, which.FieldSelector, which.LabelSelector, err)
	}
	return nil
}

// decode calls each at each item of a list.
func decode(from io.Reader, about *metav1.ListMeta, each func(*json.Decoder) error) error {
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
			err = d.Decode(about)
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

// Job drops how the pods of a Job run, and long annotations.
func Job(j *batchv1.Job) {
	slimMeta(&j.ObjectMeta)
	slimMeta(&j.Spec.Template.ObjectMeta)
	Spec(&j.Spec.Template.Spec)
}

// Spec drops of the spec of a pod what no decision needs: how the containers run, and their volumes.
func Spec(s *corev1.PodSpec) {
	s.Volumes = nil
	slimContainers(s.InitContainers)
	slimContainers(s.Containers)
	s.EphemeralContainers = nil
}

func slimContainers(all []corev1.Container) {
	for i, c := range all {
		all[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
}

func slimMeta(m *metav1.ObjectMeta) {
	if mirror, isStatic := m.Annotations[corev1.MirrorPodAnnotationKey]; isStatic && HeapOf(m) > maxOfKubelet {
		*m = metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, DeletionTimestamp: m.DeletionTimestamp,
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: mirror},
		}
	}
	m.ManagedFields = nil
	maps.DeleteFunc(m.Annotations, func(_, value string) bool { return len(value) > maxAnnotation })
}
