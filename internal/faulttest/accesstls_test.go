//go:build faults

package faulttest_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// certificate is one with its key, as PEM.
func certificate(t *testing.T, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if ca == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	require.NoError(t, err)
	cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// TestAServerThatRequiresTLS is reached by a connection string that names its authority,
// and by no other.
func TestAServerThatRequiresTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, content ...[]byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, bytes.Join(content, nil), 0o600))
		return path
	}
	ca, caKey, caPEM, _ := certificate(t, "authority", nil, nil)
	_, _, otherPEM, _ := certificate(t, "another authority", nil, nil)
	_, _, certPEM, keyPEM := certificate(t, "server", ca, caKey)
	caFile, otherFile := file("ca.pem", caPEM), file("other.pem", otherPEM)
	cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true, Args: []string{
		"--tlsMode", "preferTLS", "--tlsCertificateKeyFile", file("server.pem", certPEM, keyPEM), "--tlsCAFile", caFile, "--tlsAllowConnectionsWithoutCertificates",
	}})
	plain := cluster.Node(0).URI()
	require.NoError(t, cluster.Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "tlsMode", Value: "requireTLS"}}).Err())

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	trusting := plain + "&tls=true&tlsCAFile=" + url.QueryEscape(caFile)
	store, err := mongostore.Connect(ctx, trusting, mongostore.Config{Database: "tls"})
	require.NoError(t, err)
	_, err = store.Commit(ctx, &counter{Header: mongostore.Header{ID: "x"}}, mongostore.Changes{})
	require.NoError(t, err)
	require.NoError(t, store.Close(ctx))
	events, err := outbox.New(mongotest.Connect(t, trusting), outbox.Config{Database: "tls"})
	require.NoError(t, err)
	require.NoError(t, events.Setup(ctx))
	require.NoError(t, appendTo(t, events, outbox.Message{ID: "e", Type: "t", Payload: 1, Handlers: []string{"h"}}))

	for name, uri := range map[string]string{"no TLS": plain, "no authority": plain + "&tls=true", "another authority": plain + "&tls=true&tlsCAFile=" + url.QueryEscape(otherFile)} {
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := mongostore.Connect(short, uri, mongostore.Config{Database: "tls"})
		cancel()
		require.Error(t, err, name)
		require.NotErrorIs(t, err, mongostore.ErrInvalid, name)
	}
	_, err = mongostore.Connect(ctx, plain+"&tls=true&tlsCAFile="+url.QueryEscape(filepath.Join(dir, "absent.pem")), mongostore.Config{})
	require.ErrorIs(t, err, mongostore.ErrInvalid)
}

// written keeps all that is logged, at every level.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
}

// TestPasswordsAreInNoErrorAndNoLog connects where it cannot work, and looks for the
// password, in whatever form, in all that was told.
func TestPasswordsAreInNoErrorAndNoLog(t *testing.T) {
	t.Parallel()
	const secret = "sEcr3t"
	g := startGuarded(t)
	addr := g.cluster.Node(0).Addr()
	var log written
	told := map[string]string{}
	for name, uri := range map[string]string{
		"wrong password":        "mongodb://root:" + secret + "@" + addr + "/?directConnection=true",
		"wrong user":            "mongodb://nobody:" + secret + "@" + addr + "/?directConnection=true",
		"wrong server":          "mongodb://root:" + secret + "@127.0.0.1:1/?directConnection=true",
		"no such host":          "mongodb://root:" + secret + "@no.such.host.invalid/?directConnection=true",
		"unknown option":        "mongodb://root:" + secret + "@" + addr + "/?directConnection=maybe",
		"bad option":            "mongodb://root:" + secret + "@" + addr + "/?maxPoolSize=" + secret,
		"bad escape":            "mongodb://root:" + secret + "%zz@" + addr,
		"slash in it":           "mongodb://root:" + secret + "/x@" + addr,
		"colon in it":           "mongodb://root:a:" + secret + "@" + addr,
		"bad port":              "mongodb://root:" + secret + "@127.0.0.1:port",
		"forgotten host":        "mongodb://root:" + secret,
		"forgotten host, slash": "mongodb://root:" + secret + "/",
		"escaped at sign":       "mongodb://root:" + secret + "%40" + addr,
		"no scheme":             "root:" + secret + "@" + addr,
		"scheme of another":     "postgres://root:" + secret + "@" + addr,
		"srv with a port":       "mongodb+srv://root:" + secret + "@" + addr,
		"key file password":     "mongodb://" + addr + "/?tls=true&tlsCertificateKeyFile=/absent&tlsCertificateKeyFilePassword=" + secret,
		"mechanism properties":  "mongodb://" + addr + "/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN" + secret,
		"only the password":     secret,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := mongostore.Connect(ctx, uri, mongostore.Config{Database: accessDB, Logger: log.logger()})
		require.Error(t, err, name)
		told[name] = everything(err)
		client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(200 * time.Millisecond))
		if err == nil { // else there is nothing to make a store on
			told["outbox: "+name] = outboxTells(ctx, t, client, log.logger())
			_ = client.Disconnect(t.Context())
		}
		cancel()
	}
	told["the log"] = log.text.String()
	for name, text := range told {
		if strings.Contains(text, secret) {
			t.Errorf("%s: the secret is in %s", name, text)
		}
	}
}

// everything is an error and all that it wraps.
func everything(err error) string {
	text := err.Error()
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			text += "\n" + everything(inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			text += "\n" + everything(inner)
		}
	}
	return text
}

func outboxTells(ctx context.Context, t *testing.T, client *mongo.Client, logger *slog.Logger) string {
	t.Helper()
	events, err := outbox.New(client, outbox.Config{Database: accessDB, Logger: logger})
	require.NoError(t, err)
	var all []string
	_, claimed := events.Claim(ctx, outbox.ClaimOptions{Handlers: []string{"h"}})
	for _, err := range []error{events.Setup(ctx), claimed, appendBefore(ctx, events), events.Complete(ctx, &outbox.Delivery{ID: "h:e", Token: "t"})} {
		if err != nil {
			all = append(all, everything(err))
		}
	}
	return strings.Join(all, "\n")
}

func appendBefore(ctx context.Context, events *outbox.Store) error {
	return events.Transaction(ctx, func(ctx context.Context) error {
		return events.Append(ctx, outbox.Message{ID: "e", Type: "t", Payload: 1, Handlers: []string{"h"}})
	})
}
