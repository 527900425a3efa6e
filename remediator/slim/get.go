package slim

import (
	"context"
	"fmt"
	"io"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// maxObject is the most that is read of one object, in bytes of JSON. The API server stores 1.5 MB of it, as protobuf or as JSON.
const maxObject = 16 << 20

// Get reads one object. A pod, a Job, an object without a Go type and metadata, which tenants write, are read at a known cost: the error is
// [ErrTooLarge], or that of the API server, whose kind is kept. Other objects are read as they are.
func (r *Reader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	accept, decode := decoderOf(object)
	if decode == nil {
		return r.Reader.Get(ctx, key, object, opts...) //nolint:wrapcheck // its error, as it is
	}
	done, err := turn(ctx, r.getting)
	if err != nil {
		return err
	}
	defer done()
	kind, err := apiutil.GVKForObject(object, scheme.Scheme)
	if err != nil {
		return fmt.Errorf("tell the kind of an object: %w", err)
	}
	api, resource, err := r.api(kind)
	if err != nil {
		return err
	}
	which := (&client.GetOptions{}).ApplyOptions(opts).AsGetOptions()
	body, err := api.Get().NamespaceIfScoped(key.Namespace, key.Namespace != "").Resource(resource).Name(key.Name).
		SpecificallyVersionedParams(which, scheme.ParameterCodec, corev1.SchemeGroupVersion).SetHeader("Accept", accept).Stream(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the kind of the error counts
	}
	defer body.Close()
	text, err := io.ReadAll(&limited{from: body, left: maxObject})
	if err == nil {
		err = decode(text)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, key, err)
	}
	object.SetManagedFields(nil)
	return nil
}

// decoderOf is what decodes an object of this type, and the form in which it is asked for; nil: the object is read as it is.
func decoderOf(object client.Object) (accept string, decode func(text []byte) error) {
	accept = "application/json"
	switch o := object.(type) {
	case *corev1.Pod:
		return accept, func(text []byte) error {
			*o = corev1.Pod{}
			err := decodePod(text, o)
			o.TypeMeta = metav1.TypeMeta{}
			return err
		}
	case *batchv1.Job:
		return accept, func(text []byte) error {
			*o = batchv1.Job{}
			err := decodeWhole(text, o)
			o.TypeMeta = metav1.TypeMeta{}
			return err
		}
	case *metav1.PartialObjectMetadata:
		kind := o.GroupVersionKind()
		return accept + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1", func(text []byte) error {
			*o = metav1.PartialObjectMetadata{}
			err := decodeMeta(text, o)
			o.SetGroupVersionKind(kind)
			return err
		}
	case *unstructured.Unstructured:
		return accept, func(text []byte) error { return decodeUnstructured(text, o) }
	}
	return "", nil
}
