package webhooks

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// minKey is the length of the shortest valid key: an empty or truncated file must not sign anything.
const minKey = 16

// readKey reads the key of a webhook: base64 after whsec_, as Standard Webhooks write it, or else the bytes themselves.
func readKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the secret: %w", err)
	}
	key = bytes.TrimSpace(key)
	if text, ok := strings.CutPrefix(string(key), "whsec_"); ok {
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("secret %s: not base64 after whsec_", path) // the error would quote it
		}
	}
	if len(key) < minKey {
		return nil, fmt.Errorf("secret %s: has %d bytes, not %d or more", path, len(key), minKey)
	}
	return key, nil
}

// sign is the header webhook-signature of Standard Webhooks (standardwebhooks.com, signature scheme v1): over the id, the
// time and the body, so that none of them can be changed or sent again later.
func sign(key []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
