package evidence

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
)

const (
	// maxSlices is more than a bundle of the largest size has, 1 GiB.
	maxSlices = 200
	// maxSlice is the most bytes that one Job prints, before base64.
	maxSlice = 6 << 20
)

// fetch is one run of the command.
type fetch struct {
	api  client.Client
	out  io.Writer
	now  func() time.Time
	logs func(ctx context.Context, namespace, pod string) (io.ReadCloser, error)
	// every is how often a Job is looked at.
	every time.Duration

	node  corev1.Node
	print corev1.PodTemplate
	// bundle is the name of the bundle, file where it goes.
	bundle, file string
}

// fetch writes the bundle into its file, which is there once it is whole. What a node prints is input: its sizes have bounds.
func (f *fetch) fetch(ctx context.Context) (err error) {
	name := f.file
	if name == "" {
		name = f.bundle
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make the file of the bundle: %w", err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(name))
		}
	}()
	sum := sha256.New()
	for slice, of := 1, 1; slice <= of; slice++ {
		if of, err = f.slice(ctx, io.MultiWriter(file, sum), sum, slice); err != nil {
			return err
		}
	}
	cli.Fprintf(f.out, "Bundle %s of node %s is in file %s\n", f.bundle, f.node.Name, name)
	return nil
}

// slice has one part of the bundle printed, and returns how many there are. The last one has to have the sum of the whole.
func (f *fetch) slice(ctx context.Context, to io.Writer, sum hash.Hash, slice int) (of int, err error) {
	at := strings.TrimSuffix(strings.TrimPrefix(f.bundle, f.node.Name+"-"), ".tar.gz")
	number := strconv.Itoa(slice)
	job := bundle.NewJob(&f.print, f.node.Name, f.jobName(f.print.Name, number), longest, "-at="+at, "-slice="+number)
	pod, result, err := f.run(ctx, job)
	defer func() {
		// Its log is as large as the part: it does not stay on the node for a day.
		err = errors.Join(err, client.IgnoreNotFound(f.api.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))))
	}()
	if err != nil {
		return 0, err
	}
	var size int64
	var want string
	_, err = fmt.Sscanf(result.Message, "slice "+number+" of %d, %d bytes, sha256 %64s", &of, &size, &want)
	if err != nil || of < 1 || of > maxSlices {
		return 0, fmt.Errorf("part %d of bundle %s: the node answers %q", slice, f.bundle, result.Message)
	}
	log, err := f.logs(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return 0, fmt.Errorf("read the log of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	defer log.Close()
	if err := decode(to, log); err != nil {
		return 0, fmt.Errorf("part %d of bundle %s: %w", slice, f.bundle, err)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); slice >= of && got != want {
		return 0, fmt.Errorf("bundle %s has not arrived whole: its sha256 is %s, and the node has %s", f.bundle, got, want)
	}
	return of, nil
}

// decode writes what lines of base64 say. The result, a line of JSON, ends them.
func decode(to io.Writer, log io.Reader) error {
	left := maxSlice
	lines := bufio.NewScanner(log)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "{") {
		data, err := base64.StdEncoding.DecodeString(lines.Text())
		if err != nil {
			return fmt.Errorf("the log has the line %.80q: %w", lines.Text(), err)
		}
		if left -= len(data); left < 0 {
			return fmt.Errorf("the log has more than %d bytes", maxSlice)
		}
		if _, err := to.Write(data); err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	return nil
}
